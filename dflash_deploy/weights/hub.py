"""Asking the hub: which commit, which files. Every refusal is an error with its own next step."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dflash_deploy.errors import (
    DeployError,
    HubUnreachable,
    RepositoryGated,
    RepositoryMissing,
    TokenRefused,
)
from dflash_deploy.redact import Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lockfile import LockedFile, LockedModel, is_within

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo

T = TypeVar("T")

HUB = "https://huggingface.co"
TRIES = 5
FIRST_PAUSE = 0.5
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
UNAUTHORISED, FORBIDDEN, MISSING = 401, 403, 404


@dataclass(frozen=True)
class Source:
    """Where weights come from: the hub or a mirror of it, and the token to show there."""

    endpoint: str
    token: Secret

    @classmethod
    def of(cls, token: Secret, endpoint: str | None = None) -> Source:
        """The hub that HF_ENDPOINT names, else the public one."""
        return cls((endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/"), token)

    def file(self, repo: str, commit: str, path: str) -> str:
        """Where one file of a commit is asked for."""
        from urllib.parse import quote

        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(path)}"


def resolve(source: Source, repo: str, revision: str | None) -> LockedModel:
    """The commit that a revision means now, with all its files. `None` is the newest.

    Raises RepositoryMissing, RepositoryGated, TokenRefused or HubUnreachable.
    """
    from huggingface_hub import HfApi

    # an empty token must be `False`: `None` would bring along the one of the user's own login
    api = HfApi(endpoint=source.endpoint, token=source.token.reveal() or False)
    info = _asked(lambda: api.model_info(repo, revision=revision, files_metadata=True), source, repo)
    if not info.sha:
        raise HubUnreachable(f"{source.endpoint} names no commit of {repo}", hint="is HF_ENDPOINT a hub?")
    return LockedModel(info.id or repo, info.sha, tuple(_files(info)))


def _files(info: ModelInfo) -> list[LockedFile]:
    found = []
    for sibling in info.siblings or ():
        if not is_within(sibling.rfilename):
            continue
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        size = sibling.lfs.size if sibling.lfs else sibling.size
        found.append(LockedFile(sibling.rfilename, size or 0, sha256, None if sha256 else sibling.blob_id))
    return sorted(found, key=lambda file: file.path)


def _asked(ask: Callable[[], T], source: Source, repo: str) -> T:
    """The answer, asked for again where the hub is busy."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(TRIES):
        try:
            return ask()
        except HfHubHTTPError as problem:
            status = problem.response.status_code if problem.response is not None else 0
            if status not in TRANSIENT or attempt == TRIES - 1:
                raise refusal(status, _code(problem), source, repo) from None
            time.sleep(pause(attempt, retry_after(problem.response.headers.get("retry-after"))))
        except (httpx2.TransportError, OSError) as problem:
            if attempt == TRIES - 1:
                raise HubUnreachable(
                    f"{source.endpoint} cannot be reached: {problem}",
                    hint="see to the network or its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror",
                ) from None
            time.sleep(pause(attempt))
    raise AssertionError("the last attempt returns or raises")


def _code(problem: HfHubHTTPError) -> str:
    return str(problem.response.headers.get("x-error-code", "")) if problem.response is not None else ""


def refusal(status: int, code: str, source: Source, repo: str) -> DeployError:
    """What a refusal of the hub means, and what to do about it."""
    page = f"{source.endpoint}/{repo}"
    shown = bool(source.token.reveal())
    if code == "GatedRepo" or (status == FORBIDDEN and shown):
        missing = f"write your token to {Settings.hf_token} in .env"
        ask = "the token's account has not accepted them yet" if shown else missing
        return RepositoryGated(
            f"{repo} is gated: the hub hands it to accounts that accepted its terms",
            hint=f"accept them on {page}; {ask}",
        )
    if code == "RevisionNotFound":
        return RepositoryMissing(f"{repo} has no such revision", hint=f"see {page}/commits")
    if status == UNAUTHORISED and shown and code != "RepoNotFound":
        return TokenRefused(
            f"{source.endpoint} refuses the token, even for what everybody may read",
            hint=f"it has expired or was revoked: write a new one to {Settings.hf_token} in .env, or empty the line",
        )
    if status in {UNAUTHORISED, MISSING} or code == "RepoNotFound":
        private = "" if shown else f", or it is private: then write a token to {Settings.hf_token} in .env"
        return RepositoryMissing(f"{source.endpoint} has no {repo}", hint=f"look whether it was renamed{private}")
    return HubUnreachable(f"{source.endpoint} answers {status} for {repo}", hint="try again later: what is there stays")


def retry_after(value: str | None) -> float | None:
    """Seconds that a server asks to wait, given as seconds or as a date; `None` where it does not say."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def pause(attempt: int, asked: float | None = None) -> float:
    """Seconds before the next attempt: what the server asks for, else doubling from half a second, with jitter."""
    if asked is not None:
        return min(asked, 300.0) + random.uniform(0.0, 0.5)  # noqa: S311 - jitter, not a secret
    return min(FIRST_PAUSE * 2.0**attempt, 30.0) * random.uniform(0.5, 1.0)  # noqa: S311
