"""The JSON documents of the API. Pure."""

import hashlib
from collections.abc import Iterable, Iterator

import yaml

from tests.support.hub._content import read
from tests.support.hub._repo import Commit, Repository, StoredFile

Entry = dict[str, object]


def model_info(repository: Repository, commit: Commit, *, blobs: bool) -> Entry:
    """What `/api/models/{repo}` says; `blobs` adds sizes and hashes to the files."""
    return {
        "_id": repository.key,
        "id": repository.name,
        "modelId": repository.name,
        "author": repository.name.split("/")[0],
        "sha": commit.id,
        "private": repository.access == "private",
        "gated": "manual" if repository.access == "gated" else False,
        "disabled": False,
        "lastModified": "2026-10-01T12:00:00.000Z",
        "createdAt": "2026-09-01T12:00:00.000Z",
        "downloads": 0,
        "likes": 0,
        "tags": ["safetensors"],
        "cardData": card(commit),
        "siblings": [_sibling(file, blobs=blobs) for file in commit.files.values()],
    }


def card(commit: Commit) -> Entry:
    """The front matter of README.md; empty without one."""
    file = commit.files.get("README.md")
    parts = read(file.content).decode().split("---") if file else []
    return dict(yaml.safe_load(parts[1])) if len(parts) > 2 else {}


def _sibling(file: StoredFile, *, blobs: bool) -> Entry:
    entry: Entry = {"rfilename": file.path}
    if blobs:
        entry |= {"blobId": file.blob_id, "size": file.size}
    if blobs and file.large:
        entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return entry


def tree(repository: Repository, commit: Commit, folder: str, *, recursive: bool) -> list[Entry]:
    """The entries below a folder, directories first."""
    prefix = f"{folder}/" if folder else ""
    below = {path: file for path, file in commit.files.items() if path.startswith(prefix)}
    inside = {name for path in below for name in _folders(path, len(prefix))}
    shown = sorted(name for name in inside if recursive or "/" not in name[len(prefix) :])
    files = [file for path, file in below.items() if recursive or "/" not in path[len(prefix) :]]
    return [*map(_directory, shown), *(_file(repository, file) for file in files)]


def paths_info(repository: Repository, commit: Commit, paths: Iterable[str]) -> list[Entry]:
    """The entries of these paths; the ones that are not there are left out, as the hub does."""
    folders = {name for path in commit.files for name in _folders(path, 0)}
    found: list[Entry] = []
    for path in paths:
        if path in commit.files:
            found.append(_file(repository, commit.files[path]))
        elif path in folders:
            found.append(_directory(path))
    return found


def refs(repository: Repository) -> Entry:
    """The branches."""
    branches = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
        for name, commit in repository.branches.items()
    ]
    return {"branches": branches, "converts": [], "tags": []}


def whoami(account: str) -> Entry:
    """The account of a token."""
    token = {"displayName": "test", "role": "read"}
    return {"type": "user", "name": account, "fullname": account, "orgs": [], "auth": {"accessToken": token}}


def _folders(path: str, start: int) -> Iterator[str]:
    at = path.find("/", start)
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _directory(path: str) -> Entry:
    oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}


def _file(repository: Repository, file: StoredFile) -> Entry:
    entry: Entry = {"type": "file", "oid": file.blob_id, "size": file.size, "path": file.path}
    if file.large:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
        if repository.xet:
            entry["xetHash"] = file.xet_hash
    return entry
