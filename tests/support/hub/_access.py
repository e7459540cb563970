"""Who may see what, in the words of the real hub.

Recorded from the real hub without a token: a missing and a private repository answer alike, 401 with `Invalid username
or password.` and no X-Error-Code; a gated one shows its API to everybody and refuses its files.
"""

from tests.support.hub._ledger import Stage
from tests.support.hub._reply import Reply, refusal
from tests.support.hub._repo import Repository


def stale_token(stage: Stage) -> Reply:
    """The answer to a token that the hub does not know, for public repositories as well."""
    return refusal(stage, 401, "Invalid credentials in Authorization header")


def refuse_repository(repository: Repository | None, account: str | None, stage: Stage, *, bare: bool) -> Reply | None:
    """The refusal of a repository that is not there for this account; None where it is.

    The client tells "not found" from a 401 without a code only on an https address, which this server has not. So the
    code is sent, unless `bare` asks for the letter of the real answer.
    """
    hidden = repository is None or (repository.access == "private" and account not in repository.readers)
    if not hidden:
        return None
    if account is None:
        return refusal(stage, 401, "Invalid username or password.", "" if bare else "RepoNotFound")
    return refusal(stage, 404, "Repository not found", "RepoNotFound")


def refuse_files(repository: Repository, account: str | None, stage: Stage) -> Reply | None:
    """The refusal of a gated repository's files; None where the account may have them."""
    if repository.access != "gated" or account in repository.readers:
        return None
    restricted = f"Access to model {repository.name} is restricted"
    if account is None:
        message = f"{restricted}. You must have access to it and be authenticated to access it. Please log in."
        return refusal(stage, 401, message, "GatedRepo")
    address = f"https://huggingface.co/{repository.name}"
    message = f"{restricted} and you are not in the authorized list. Visit {address} to ask for access."
    return refusal(stage, 403, message, "GatedRepo")
