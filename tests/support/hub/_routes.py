"""From a request to its reply: which document, which file, which refusal."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, quote, unquote

from tests.support.hub import _documents as documents
from tests.support.hub._access import refuse_files, refuse_repository, stale_token
from tests.support.hub._ledger import Stage
from tests.support.hub._reply import Reply, document, redirect, refusal
from tests.support.hub._repo import Commit, Repository, StoredFile
from tests.support.hub._state import State

_CACHE = re.compile(r"/api/resolve-cache/(?:models|datasets)/(?P<repo>[^/]+/[^/]+)/(?P<revision>[^/]+)/(?P<path>.+)")
_RESOLVE = re.compile(r"/(?:datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_MODEL = re.compile(
    r"/api/(?:models|datasets)/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree)(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?)?"
)
_HOP = re.compile(r"/hop/(?P<left>\d+)")


@dataclass(frozen=True)
class Asked:
    """A request, as far as its reply depends on it."""

    path: str
    query: str = ""
    account: str | None = None
    token: Literal["none", "known", "stale"] = "none"

    def option(self, name: str) -> str:
        """The value of a query parameter, or nothing."""
        return parse_qs(self.query).get(name, [""])[0]

    def flag(self, name: str) -> bool:
        """Whether a query parameter says yes."""
        return self.option(name).lower() in {"1", "true"}


def on_hub(state: State, asked: Asked) -> Reply:
    """The reply of the hub itself."""
    if hop := _HOP.fullmatch(asked.path):
        return _hop(asked, int(hop["left"]))
    if asked.path == "/api/models":
        base = asked.option("filter").removeprefix("base_model:")
        there = (one for one in state.repositories.values() if documents.card(one.head).get("base_model") == base)
        return document([{"id": one.name} for one in there if asked.option("search") in one.name.lower()])
    found: re.Match[str] | None
    for pattern, answer in ((_CACHE, _bytes_of_small), (_RESOLVE, _resolve), (_MODEL, _model)):
        if found := pattern.fullmatch(asked.path):
            return answer(state, asked, found)
    return refusal("api", 404, "Sorry, we can't find the page you are looking for.")


def file_of(path: str) -> str:
    """`owner/name/path` of the file that a path of the hub names, whether there is one or not."""
    found = _CACHE.fullmatch(path) or _RESOLVE.fullmatch(path)
    return f"{found['repo']}/{unquote(found['path'])}" if found else ""


def on_cdn(state: State, asked: Asked) -> Reply:
    """The reply of the host that large files come from. It looks at the signature and at nothing else."""
    if hop := _HOP.fullmatch(asked.path):
        return _hop(asked, int(hop["left"]))
    number = asked.option("Signature")
    if not number.isdigit() or int(number) >= len(state.links):
        return Reply("body", 403, {"Content-Type": "application/xml"})
    link = state.links[int(number)]
    name = f"{link.repository.name}/{link.file.path}"
    base = link.file.path.rsplit("/", 1)[-1]
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(base)}; filename=\"{base}\";",
        "ETag": f'"{link.file.xet_hash}"',
        "Accept-Ranges": "bytes",
    }
    return Reply("body", 200, headers, link.file.content, name, ranged=True)


def _hop(asked: Asked, left: int) -> Reply:
    to = asked.option("to")
    return redirect("redirect", 302, to if left <= 1 else f"/hop/{left - 1}?to={quote(to, safe='')}")


def _open(state: State, asked: Asked, found: re.Match[str], stage: Stage) -> tuple[Repository, Commit] | Reply:
    """The repository and the commit that a path names, or why they are refused."""
    if asked.token == "stale":
        return stale_token(stage)
    name = found["repo"]
    repository = state.repositories.get(name)
    refused = refuse_repository(repository, asked.account, stage, bare=state.bare_401)
    if refused is not None or repository is None:
        return refused or refusal(stage, 404, "Repository not found", "RepoNotFound")
    revision = unquote(found["revision"] or "main")
    commit = repository.commit(revision)
    if commit is None:
        return refusal(stage, 404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return repository, commit


def _model(state: State, asked: Asked, found: re.Match[str]) -> Reply:
    opened = _open(state, asked, found, "api")
    if isinstance(opened, Reply):
        return opened
    repository, commit = opened
    if found["verb"] == "tree":
        return document(documents.tree(commit))
    return document(documents.model_info(repository, commit, blobs=asked.flag("blobs")))


def _file(
    state: State, asked: Asked, found: re.Match[str], stage: Stage
) -> tuple[Repository, Commit, StoredFile] | Reply:
    opened = _open(state, asked, found, stage)
    if isinstance(opened, Reply):
        return opened
    repository, commit = opened
    path = unquote(found["path"])
    refused = refuse_files(repository, asked.account, stage)
    if refused is not None:
        return refused
    if path not in commit.files:
        return refusal(stage, 404, "Entry not found", "EntryNotFound", commit=commit.id)
    return repository, commit, commit.files[path]


def _resolve(state: State, asked: Asked, found: re.Match[str]) -> Reply:
    """Where the bytes are: on this host for a small file, at the CDN for a large one."""
    opened = _file(state, asked, found, "resolve")
    if isinstance(opened, Reply):
        return opened
    repository, commit, file = opened
    name = f"{repository.name}/{file.path}"
    if not file.large:
        cache = f"/api/resolve-cache/models/{repository.name}/{commit.id}/{quote(file.path)}"
        return redirect("resolve", 307, f"{cache}?etag=%22{file.etag}%22", file=name, X_Repo_Commit=commit.id)
    headers = {
        "X_Repo_Commit": commit.id,
        "X_Linked_Size": str(file.size),
        "X_Linked_ETag": f'"{file.etag}"',
        "Accept_Ranges": "bytes",
    }
    return redirect("resolve", 302, state.sign(repository, file), file=name, **headers)


def _bytes_of_small(state: State, asked: Asked, found: re.Match[str]) -> Reply:
    opened = _file(state, asked, found, "body")
    if isinstance(opened, Reply):
        return opened
    repository, commit, file = opened
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Repo-Commit": commit.id,
        "ETag": f'"{file.etag}"',
        "Accept-Ranges": "bytes",
    }
    return Reply("body", 200, headers, file.content, f"{repository.name}/{file.path}", ranged=True)
