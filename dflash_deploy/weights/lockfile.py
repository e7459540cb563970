"""`dflash.lock`: the commit of each repository that the deployment uses, with size and digest of every file."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from dflash_deploy.deployment.files import PUBLIC, write_if_changed
from dflash_deploy.errors import LockRefused

Role = Literal["target", "drafter"]
ROLES: tuple[Role, ...] = get_args(Role)
SCHEMA = 1
LOCK_FILE = "dflash.lock"


@dataclass(frozen=True)
class LockedFile:
    """One file: its path in the repository, its size in bytes, and its digest.

    `sha256` is the digest of large files (LFS); `blob` is the git object id of files in git itself.
    """

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True)
class LockedModel:
    """A repository at one commit, with the files that the deployment needs."""

    repo: str
    commit: str
    files: tuple[LockedFile, ...]

    def only(self, names: Container[str]) -> LockedModel:
        """Return the same commit with only these files."""
        return LockedModel(self.repo, self.commit, tuple(file for file in self.files if file.path in names))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Lock:
    """The locked models, by role."""

    models: Mapping[Role, LockedModel]

    def text(self) -> str:
        """Return the file's content, sorted and indented for readable diffs."""
        models = {role: asdict(model) for role, model in sorted(self.models.items())}
        return json.dumps({"schema": SCHEMA, "models": models}, indent=2) + "\n"


def write_lock(path: Path, lock: Lock) -> bool:
    """Write the lock if it differs, keep the previous one as dflash.lock.last; return whether it changed."""
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    changed = write_if_changed(path, lock.text(), mode=PUBLIC)
    if changed and before is not None:
        write_if_changed(path.with_name(f"{path.name}.last"), before, mode=PUBLIC)
    return changed


def read_lock(path: Path) -> Lock | None:
    """Return the lock; `None` if there is none. Raises LockRefused if it is damaged or has a path outside."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return parse_lock(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LockRefused(
            f"{path} is damaged", hint="remove it and run `dflash-deploy pull`, which creates it again"
        ) from None


def parse_lock(text: str) -> Lock:
    """Parse a lock's content. Raises ValueError, KeyError, TypeError or AttributeError if it is not a lock."""
    document = json.loads(text)
    if document["schema"] != SCHEMA:
        raise ValueError(document["schema"])
    models: dict[Role, LockedModel] = {}
    for role in ROLES:
        if role in document["models"]:
            model = document["models"][role]
            files = tuple(_file(row) for row in model["files"])
            models[role] = LockedModel(str(model["repo"]), str(model["commit"]), files)
    return Lock(models)


def _file(row: Mapping[str, object]) -> LockedFile:
    path, size = str(row["path"]), row["size"]
    if not isinstance(size, int) or size < 0 or not is_within(path):
        raise ValueError(path)
    sha256, blob = row.get("sha256"), row.get("blob")
    return LockedFile(path, size, str(sha256) if sha256 else None, str(blob) if blob else None)


def is_within(path: str) -> bool:
    """Return whether a path of a repository stays inside the directory that it is joined to."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "" not in parts and "\0" not in path
