"""Resolves commits and files on the Hugging Face Hub, and words the errors of all requests to it.

An error says why the Hub, or what is on the way to it, refuses a request, and what to do. All commands use these
errors.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Annotated
from urllib.parse import quote, urlsplit
from urllib.request import proxy_bypass

import httpx
from pydantic import Field, RootModel

from dflash_deploy.errors import (
    DeployError,
    HubUnreachable,
    RepositoryGated,
    RepositoryMissing,
    SettingsRefused,
    TokenRefused,
)
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.redact import Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lock import LockedFile, LockedModel, is_within

HUB = "https://huggingface.co"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Source:
    """Where weights come from: the Hugging Face Hub or a mirror, and the token for it."""

    endpoint: str
    token: Secret

    @classmethod
    def of(cls, token: Secret, endpoint: str | None = None) -> Source:
        """Return the Hub in HF_ENDPOINT, else the public one. Raises SettingsRefused if it is not a valid URL.

        Without TLS the token goes to this machine only: anyone on the way could read it.
        """
        url = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        if not is_address(url):
            raise SettingsRefused(
                f"HF_ENDPOINT: `{without_credentials(url)[:200]}` is not a valid URL",
                hint="set it to http://HOST:PORT or https://HOST:PORT",
            )
        parts = urlsplit(url)
        return cls(url, token if parts.scheme == "https" or parts.hostname in _THIS_MACHINE else Secret(""))

    @property
    def shown(self) -> str:
        """The endpoint for messages, without credentials."""
        return without_credentials(self.endpoint)

    def file(self, repo: str, commit: str, path: str) -> str:
        """Return the URL of one file of a commit."""
        return f"{self.endpoint}/{repo}/resolve/{quote(commit, safe='')}/{quote(path)}"


def is_address(url: str) -> bool:
    """Return whether a URL has a scheme and a host that requests can be sent to."""
    try:
        parts = urlsplit(url)
        return httpx.URL(url).scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def without_credentials(url: str) -> str:
    """Return a URL, valid or not, without the text before its last `@`."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.IGNORECASE | re.DOTALL)


TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
UNAUTHORISED, FORBIDDEN, MISSING, PROXY_LOGIN = 401, 403, 404, 407
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_MIRROR = "set HF_ENDPOINT to a mirror"
TOKENS = "https://huggingface.co/settings/tokens"


def is_page(headers: httpx.Headers) -> bool:
    """Return whether an answer is a web page: the Hub answers with JSON, text or bytes."""
    return str(headers.get("content-type", "")).lower().startswith("text/html")


def is_final(problem: httpx.HTTPError) -> bool:
    """Return whether the same request fails again: its certificate is not trusted, or the proxy refuses it (4xx)."""
    said = str(problem)
    return _UNTRUSTED in said or (isinstance(problem, httpx.ProxyError) and said.startswith("4"))


def refusal(status: int, headers: httpx.Headers, url: httpx.URL, source: Source, repo: str) -> DeployError:
    """Return the error for an answer that is not the requested one. `url` is where it came from, after redirects."""
    code, server = headers.get("x-error-code", ""), _server(url, source)
    if status == PROXY_LOGIN:
        return _proxy_login(url)
    if is_page(headers) and not code and status not in TRANSIENT:
        said = f"{server} returned a web page ({status}) in place of {repo}"
        hint = f"a filter or sign-in page answers: open the URL in a browser, have {url.host} allowed, or {_MIRROR}"
        return HubUnreachable(said, hint=hint)
    if status in {UNAUTHORISED, FORBIDDEN} and source.token and url.host != httpx.URL(source.endpoint).host:
        hint = f"the token is sent to {source.shown} only: set HF_ENDPOINT to the host that needs it"
        return HubUnreachable(f"{server} returned {status} for {repo}, without the token", hint=hint)
    return _refused_access(status, code, source, repo) or HubUnreachable(
        f"{server} returned {status} for {repo}", hint="try again later: downloaded bytes are kept"
    )


def _refused_access(status: int, code: str, source: Source, repo: str) -> DeployError | None:
    page, token, shown = f"{source.shown}/{repo}", Settings.hf_token, bool(source.token)
    if code == "GatedRepo" or (status == FORBIDDEN and shown):
        then = "the token's account has not accepted them yet" if shown else f"write your token to {token} in .env"
        said = f"{repo} is gated: only accounts that accepted its terms can download it"
        return RepositoryGated(said, hint=f"accept them on {page}; {then}")
    if code == "RevisionNotFound":
        return RepositoryMissing(f"{repo} does not have this revision", hint=f"choose one of {page}/commits")
    if status == UNAUTHORISED and shown and code != "RepoNotFound":
        said = f"{source.shown} rejects the token in {token} (401), even for a public repository"
        hint = f"make a new one at {TOKENS} and write it to {token} in .env, or clear the line for public models"
        return TokenRefused(said, hint=hint)
    if status in {UNAUTHORISED, MISSING} or code == "RepoNotFound":
        private = "" if shown else f"; if it is private, write a token of {TOKENS} to {token} in .env"
        return RepositoryMissing(f"{source.shown} has no {repo}", hint=f"check whether it was renamed{private}")
    return None


def unreachable(problem: httpx.HTTPError, source: Source) -> HubUnreachable:
    """Return the error for a request without an answer. It names the host that failed: a mirror may redirect."""
    try:
        url = problem.request.url
    except RuntimeError:
        # that of a timeout for the whole answer
        url = httpx.URL(source.endpoint)
    said = str(problem)[:300] or type(problem).__name__
    variable, proxy = _proxy(url)
    if isinstance(problem, httpx.ProxyError):
        if said.startswith(str(PROXY_LOGIN)):
            return _proxy_login(url)
        hint = f"have {url.host} allowed there, or {_MIRROR}"
        return HubUnreachable(f"{proxy} did not connect to {url.host}: {said}", hint=hint)
    if variable and isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout) and "SSL" not in said:
        hint = f"correct {variable}, or unset it if no proxy is needed"
        return HubUnreachable(f"{proxy} cannot be reached: {said}", hint=hint)
    hint = f"check that this network reaches {url.host}, its proxy (HTTPS_PROXY), or {_MIRROR}"
    if _UNTRUSTED in said:
        hint = "set SSL_CERT_FILE to a file with the certificate of this network's proxy; check the clock too"
    return HubUnreachable(f"{_server(url, source)} cannot be reached: {said}", hint=hint)


def _proxy_login(url: httpx.URL) -> HubUnreachable:
    variable, proxy = _proxy(url)
    # a URL with both would be redacted
    hint = f"put both before the host in {variable or 'HTTPS_PROXY'}, with `:` between them and `@` after them"
    return HubUnreachable(f"{proxy} asks for a user name and password (407)", hint=hint)


def _server(url: httpx.URL, source: Source) -> str:
    """The server of a request, and the Hub or mirror that redirected there; without credentials."""
    endpoint = httpx.URL(source.endpoint)
    if (url.host, url.port) == (endpoint.host, endpoint.port):
        return source.shown
    return f"{url.scheme}://{url.netloc.decode()}, where {source.shown} redirects,"


def _proxy(url: httpx.URL) -> tuple[str, str]:
    """The variable with the proxy of a URL, as httpx reads the environment, and the proxy; empty and a word if none."""
    names = (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if os.environ.get(name)), "")
    if not name or proxy_bypass(url.host):
        return "", "a proxy of this network"
    return name, f"the proxy {without_credentials(os.environ[name])} ({name})"


TRIES = 5
FIRST_PAUSE = 0.5

ANSWER_TIMEOUT = 60.0  # seconds for a whole answer of the Hub's API
GIVE_UP = 300.0  # seconds after which no attempt starts
LONGEST_NAME = 240  # bytes of a file's path: its part file has the path as its name
_REPOSITORY = r"^[\w.-]{1,96}(/[\w.-]{1,96})?$"

_OWN = frozenset({".pull", ".dflash-verified.json"})  # names in a directory of weights that belong to this program
Size = Annotated[int, Field(ge=0, lt=2**60)]  # bytes


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
    gated: object = False
    card: Annotated[object, Field(alias="cardData")] = None
    sha: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    siblings: Annotated[list[HubFile] | None, Field(max_length=100_000)] = None


@dataclass(frozen=True)
class PublishedModel:
    """A repository on the Hub: its commit and files, its licence (empty if none is stated), and whether it is gated."""

    model: LockedModel
    licence: str
    gated: bool


def resolve(source: Source, repo: str, revision: str | None) -> LockedModel:
    """Return the current commit of a revision with all its files. `None` is the newest commit.

    Raises SettingsRefused, RepositoryMissing, RepositoryGated, TokenRefused or HubUnreachable.
    """
    return published(source, repo, revision).model


def published(source: Source, repo: str, revision: str | None = None) -> PublishedModel:
    """Return what the Hub says about a repository. Raises what `resolve` raises."""
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
    licence = info.card.get("license") if isinstance(info.card, dict) else None
    model = LockedModel(info.id or repo, info.sha, tuple(_files(info)))
    return PublishedModel(model, licence if isinstance(licence, str) else "", bool(info.gated))


MOST_DRAFTERS = 20  # repositories of one base model that are searched for a draft model


class HubListed(ForeignDocument):
    """One repository in the answer of GET /api/models."""

    id: Annotated[str, Field(pattern=_REPOSITORY)]


class HubList(RootModel[list[HubListed]]):
    """The answer of GET /api/models."""


def drafters_for(source: Source, base: str) -> list[str]:
    """Return the repositories named after DFlash whose card declares `base` as their base model, most used first.

    Raises what `resolve` raises.
    """
    query = f"filter={quote('base_model:' + base, safe='')}&search=dflash&sort=downloads&limit={MOST_DRAFTERS}"
    answer = _asked(source, f"{source.endpoint}/api/models?{query}", base)
    try:
        listed = answer.document(HubList)
    except Invalid as problem:
        raise _unexpected(source, base, problem) from None
    return [one.id for one in listed.root[:MOST_DRAFTERS]]


def read_published(source: Source, model: LockedModel, path: str, begin: int = 0, length: int = 0) -> bytes:
    """Return a small file of a repository, or `length` of its bytes from `begin`. Raises what `resolve` raises."""
    span = {"Range": f"bytes={begin}-{begin + length - 1}"} if length else {}
    content = _asked(source, source.file(model.repo, model.commit, path), model.repo, span).content
    return content[begin : begin + length] if length and len(content) > length else content


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


def _asked(source: Source, url: str, repo: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return the answer with status 2xx; repeat the request while the Hub is busy."""
    started = time.monotonic()
    with new_client(headers={**authorization(source.token), **headers}, timeout=ANSWER_TIMEOUT) as client:
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
