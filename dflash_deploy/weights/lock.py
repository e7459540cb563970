"""`dflash.lock`: the commit of each repository that the deployment uses, with size and digest of every file."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from dflash_deploy.deployment.files import PUBLIC, write_if_changed
from dflash_deploy.errors import FileInvalid, FileMissing, LockRefused
from dflash_deploy.intake.documents import LockDocument, LockEntry, parse_document
from dflash_deploy.intake.files import MIB, read_bytes, read_text
from dflash_deploy.intake.parse import Invalid

Role = Literal["target", "drafter"]
SCHEMA = 1
MOST_BYTES = 16 * MIB  # size of the largest lock: 100,000 files


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
    try:
        before = read_text(path, limit=MOST_BYTES, lossy=True)
    except (FileMissing, FileInvalid):
        before = None
    # first: a command that is killed between the two would lose the previous lock
    if before is not None and before != lock.text():
        write_if_changed(path.with_name(f"{path.name}.last"), before, mode=PUBLIC)
    return write_if_changed(path, lock.text(), mode=PUBLIC)


def read_lock(path: Path) -> Lock | None:
    """Return the lock; `None` if there is none.

    Raises LockRefused if it is damaged or has a path outside, FileRefused if this user may not read it.
    """
    try:
        return parse_lock(read_bytes(path, limit=MOST_BYTES))
    except FileMissing:
        return None
    except FileInvalid as problem:
        said = problem.message
    except Invalid as problem:
        said = f"{path} {problem}"
    raise LockRefused(said, hint="remove it and run `dflash-deploy pull`, which creates it again")


def parse_lock(text: bytes | str) -> Lock:
    """Parse a lock's content. Raises Invalid if it is not a lock, or has a path outside."""
    models = parse_document(text, LockDocument, limit=MOST_BYTES).models
    entries: dict[Role, LockEntry | None] = {"target": models.target, "drafter": models.drafter}
    return Lock({role: _model(entry) for role, entry in entries.items() if entry is not None})


def _model(entry: LockEntry) -> LockedModel:
    for file in entry.files:
        if not is_within(file.path):
            raise Invalid(f"is damaged: `{file.path}` is not a path within a repository")
    files = (LockedFile(file.path, file.size, file.sha256 or None, file.blob or None) for file in entry.files)
    return LockedModel(entry.repo, entry.commit, tuple(files))


def is_within(path: str) -> bool:
    """Return whether a path of a repository stays inside the directory that it is joined to."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "" not in parts and "\0" not in path


# Suffixes of configuration, tokenizer, chat template and processor files.
_BESIDE_WEIGHTS = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})

_NEVER = frozenset({"README.md", "LICENSE.txt"})


def needed(files: Iterable[LockedFile], role: Role, names: Iterable[str] = ()) -> tuple[LockedFile, ...]:
    """Return the files to download: `names` if they are given (a GGUF and its projector), else those for safetensors.

    These are top-level safetensors, configuration and tokenizer files. Other formats, images and code are not needed
    (engines include the classes of all models in the catalog).
    """
    wanted = frozenset(name for name in names if name)
    if wanted:
        return tuple(file for file in files if file.path in wanted)
    return tuple(file for file in files if is_needed(PurePosixPath(file.path), role))


def is_needed(path: PurePosixPath, role: Role) -> bool:
    """Return whether an engine that loads safetensors reads this file."""
    # hidden files are none of the model's, and one of them would replace .dflash-verified.json
    if len(path.parts) > 1 or path.name.startswith(".") or path.name in _NEVER:
        return False
    if path.suffix == ".safetensors":
        return True
    # a drafter may have the embedding of its mask token in a separate file (vLLM v1/spec_decode)
    return path.suffix in _BESIDE_WEIGHTS or (role == "drafter" and path.name == "mask_embedding.pt")
