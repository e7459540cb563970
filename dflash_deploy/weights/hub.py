"""Resolve commits and files on the Hugging Face Hub. Each kind of refusal is an error with its own hint."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

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
    """Where weights come from: the Hugging Face Hub or a mirror, and the token for it."""

    endpoint: str
    token: Secret

    @classmethod
    def of(cls, token: Secret, endpoint: str | None = None) -> Source:
        """Return the Hub in HF_ENDPOINT, else the public one."""
        return cls((endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/"), token)

    def file(self, repo: str, commit: str, path: str) -> str:
        """Return the URL of one file of a commit."""
        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(path)}"


def resolve(source: Source, repo: str, revision: str | None) -> LockedModel:
    """Return the current commit of a revision with all its files. `None` is the newest commit.

    Raises RepositoryMissing, RepositoryGated, TokenRefused or HubUnreachable.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - 0.3 s, needed for downloads only

    # an empty token must be `False`: with `None`, the client uses the token of the user's login
    api = HfApi(endpoint=source.endpoint, token=source.token.reveal() or False)
    info = _asked(lambda: api.model_info(repo, revision=revision, files_metadata=True), source, repo)
    if not info.sha:
        raise HubUnreachable(
            f"{source.endpoint} returned no commit for {repo}", hint="check that HF_ENDPOINT is a Hugging Face Hub"
        )
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
    """Return the answer; repeat the request while the Hub is busy."""
    import httpx2  # noqa: PLC0415 - it comes with huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

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
                    hint="check the network or its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror",
                ) from None
            time.sleep(pause(attempt))
    raise AssertionError("the last attempt returns or raises")


def _code(problem: HfHubHTTPError) -> str:
    return str(problem.response.headers.get("x-error-code", "")) if problem.response is not None else ""


def refusal(status: int, code: str, source: Source, repo: str) -> DeployError:
    """Return the error for a refused request: what it means, and what to do."""
    page = f"{source.endpoint}/{repo}"
    shown = bool(source.token.reveal())
    if code == "GatedRepo" or (status == FORBIDDEN and shown):
        missing = f"write your token to {Settings.hf_token} in .env"
        ask = "the token's account has not accepted them yet" if shown else missing
        return RepositoryGated(
            f"{repo} is gated: only accounts that accepted its terms can download it",
            hint=f"accept them on {page}; {ask}",
        )
    if code == "RevisionNotFound":
        return RepositoryMissing(f"{repo} does not have this revision", hint=f"choose one of {page}/commits")
    if status == UNAUTHORISED and shown and code != "RepoNotFound":
        return TokenRefused(
            f"{source.endpoint} rejects the token, even for a public repository",
            hint=f"it is expired or revoked: write a new one to {Settings.hf_token} in .env, or clear the line",
        )
    if status in {UNAUTHORISED, MISSING} or code == "RepoNotFound":
        private = "" if shown else f"; if it is private, write a token to {Settings.hf_token} in .env"
        return RepositoryMissing(f"{source.endpoint} has no {repo}", hint=f"check whether it was renamed{private}")
    return HubUnreachable(
        f"{source.endpoint} returned {status} for {repo}", hint="try again later: downloaded bytes are kept"
    )


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or a date; `None` if it is missing."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def pause(attempt: int, asked: float | None = None) -> float:
    """Return the seconds before the next attempt: Retry-After, else doubling from half a second, with jitter."""
    if asked is not None:
        return min(asked, 300.0) + random.uniform(0.0, 0.5)  # noqa: S311 - jitter, not a secret
    return min(FIRST_PAUSE * 2.0**attempt, 30.0) * random.uniform(0.5, 1.0)  # noqa: S311
