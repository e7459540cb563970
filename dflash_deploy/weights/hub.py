"""Resolve commits and files on the Hugging Face Hub."""

from __future__ import annotations

import random
import re
import time
from email.utils import parsedate_to_datetime
from typing import Annotated
from urllib.parse import quote

import httpx
from pydantic import Field

from dflash_deploy.errors import HubUnreachable, SettingsRefused, TokenRefused
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client
from dflash_deploy.redact import Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.hub_errors import TRANSIENT, is_final, is_page, refusal, unreachable
from dflash_deploy.weights.lockfile import LockedFile, LockedModel, is_within
from dflash_deploy.weights.source import Source

TRIES = 5
FIRST_PAUSE = 0.5

ANSWER_TIMEOUT = 60.0
"""Seconds for a whole answer of the Hub's API."""

GIVE_UP = 300.0
"""Seconds after which no attempt starts."""

LONGEST_NAME = 240
"""Bytes of a file's path: its part file has the path as its name."""

_REPOSITORY = r"^[\w.-]{1,96}(/[\w.-]{1,96})?$"

_OWN = frozenset({".pull", ".dflash-verified.json"})
"""Names in a directory of weights that belong to this program."""

Size = Annotated[int, Field(ge=0, lt=2**60)]
"""Bytes."""


class LargeFile(ForeignDocument):
    """The large-file record of a file on the Hub."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Size


class HubFile(ForeignDocument):
    """A file of a repository on the Hub."""

    rfilename: str
    size: Size | None = None
    blob_id: Annotated[str | None, Field(alias="blobId", pattern=r"^[0-9a-f]{40}$")] = None
    lfs: LargeFile | None = None


class HubModel(ForeignDocument):
    """The answer of GET /api/models/REPOSITORY with `blobs`."""

    id: Annotated[str | None, Field(pattern=_REPOSITORY)] = None
    sha: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    siblings: Annotated[list[HubFile] | None, Field(max_length=100_000)] = None


def resolve(source: Source, repo: str, revision: str | None) -> LockedModel:
    """Return the current commit of a revision with all its files. `None` is the newest commit.

    Raises SettingsRefused, RepositoryMissing, RepositoryGated, TokenRefused or HubUnreachable.
    """
    if not re.match(_REPOSITORY, repo, re.ASCII) or ".." in repo:
        raise SettingsRefused(
            f"`{repo[:200]}` is not a repository on the Hugging Face Hub", hint="write it as OWNER/NAME"
        )
    path = f"/api/models/{repo}" + (f"/revision/{quote(revision, safe='')}" if revision is not None else "")
    answer = _asked(source, f"{source.endpoint}{path}?blobs=true", repo)
    try:
        info = answer.document(HubModel)
    except Invalid as problem:
        raise _unexpected(source, repo, problem) from None
    return LockedModel(info.id or repo, info.sha, tuple(_files(info)))


def _unexpected(source: Source, repo: str, problem: Invalid) -> HubUnreachable:
    return HubUnreachable(
        f"{source.shown} returned an unexpected answer for {repo}: it {problem}",
        hint="check that HF_ENDPOINT is a Hugging Face Hub and that no proxy or sign-in page answers in its place",
    )


def _files(info: HubModel) -> list[LockedFile]:
    found = {}
    for file in info.siblings or ():
        path = file.rfilename
        if not is_within(path) or not path.isprintable() or len(path.encode()) > LONGEST_NAME:
            continue
        if path.split("/")[0] in _OWN:
            continue
        sha256 = file.lfs.sha256 if file.lfs else None
        size = file.lfs.size if file.lfs else file.size
        found[path] = LockedFile(path, size or 0, sha256, None if sha256 else file.blob_id)
    return sorted(found.values(), key=lambda file: file.path)


def authorization(token: Secret) -> dict[str, str]:
    """Return the header with a token, empty without one. Raises TokenRefused if it cannot be part of a header."""
    shown = token.reveal()
    if not (shown.isascii() and shown.isprintable()):
        raise TokenRefused(
            f"{Settings.hf_token} has characters that no token has", hint="copy the token again into .env"
        )
    # without a token, the login of the user's own client is not used
    return {"Authorization": f"Bearer {shown}"} if shown else {}


def _asked(source: Source, url: str, repo: str) -> Answer:
    """Return the answer with status 2xx; repeat the request while the Hub is busy."""
    started = time.monotonic()
    with new_client(headers=authorization(source.token), timeout=ANSWER_TIMEOUT) as client:
        request = client.build_request("GET", url)
        for attempt in range(TRIES):
            last = attempt == TRIES - 1 or time.monotonic() - started > GIVE_UP
            try:
                answer = fetch_answer(client, request, seconds=ANSWER_TIMEOUT, redirects=True)
            except Invalid as problem:
                raise _unexpected(source, repo, problem) from None
            except httpx.HTTPError as problem:
                if last or is_final(problem) or not isinstance(problem, httpx.TransportError):
                    raise unreachable(problem, source) from None
                time.sleep(pause(attempt))
                continue
            if answer.succeeded and not is_page(answer.headers):
                return answer
            if last or answer.status not in TRANSIENT:
                raise refusal(answer.status, answer.headers, answer.url, source, repo)
            time.sleep(pause(attempt, retry_after(answer.headers.get("retry-after"))))
    raise AssertionError("the last attempt returns or raises")


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or a date; `None` if it is missing."""
    if not value:
        return None
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def pause(attempt: int, asked: float | None = None) -> float:
    """Return the seconds before the next attempt: Retry-After, else doubling from half a second, with jitter."""
    if asked is not None:
        return min(asked, 300.0) + random.uniform(0.0, 0.5)  # noqa: S311 - jitter, not a secret
    return min(FIRST_PAUSE * 2.0**attempt, 30.0) * random.uniform(0.5, 1.0)  # noqa: S311
