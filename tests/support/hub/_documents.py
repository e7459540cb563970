"""The JSON documents of the API. Pure."""

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


def tree(commit: Commit) -> list[Entry]:
    """The files of a commit."""
    return [_entry(file) for file in commit.files.values()]


def _entry(file: StoredFile) -> Entry:
    entry: Entry = {"type": "file", "oid": file.blob_id, "size": file.size, "path": file.path}
    if file.large:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return entry
