"""`dflash.lock`: which commit of which repository the deployment uses, and what each of its files is."""

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
    """One file: its path within the repository, its size in bytes, and by what it is known.

    `sha256` is that of the content, for large files; `blob` the git object id, for those that lie in git itself.
    """

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True)
class LockedModel:
    """A repository at one commit, and those of its files that are wanted."""

    repo: str
    commit: str
    files: tuple[LockedFile, ...]

    def only(self, names: Container[str]) -> LockedModel:
        """The same commit with those files alone."""
        return LockedModel(self.repo, self.commit, tuple(file for file in self.files if file.path in names))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Lock:
    """What was resolved, by role."""

    models: Mapping[Role, LockedModel]

    def text(self) -> str:
        """The file's content: sorted and indented, so that a difference can be read."""
        models = {role: asdict(model) for role, model in sorted(self.models.items())}
        return json.dumps({"schema": SCHEMA, "models": models}, indent=2) + "\n"


def write_lock(path: Path, lock: Lock) -> bool:
    """Write it unless it says so already; the one before is kept as dflash.lock.last. Tells whether it changed."""
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    changed = write_if_changed(path, lock.text(), mode=PUBLIC)
    if changed and before is not None:
        write_if_changed(path.with_name(f"{path.name}.last"), before, mode=PUBLIC)
    return changed


def read_lock(path: Path) -> Lock | None:
    """The lock; `None` where there is none. Raises LockRefused where it is damaged, or leads out of a directory."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return parse_lock(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LockRefused(f"{path} is damaged", hint="remove it, and `dflash-deploy pull` resolves anew") from None


def parse_lock(text: str) -> Lock:
    """Read a lock's content. Raises ValueError, KeyError, TypeError or AttributeError where it is none."""
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
    """Whether a path of a repository stays below the directory that it is joined to."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "" not in parts and "\0" not in path
