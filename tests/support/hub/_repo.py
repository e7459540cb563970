"""A repository as the hub keeps it: files, commits, and who may read it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from tests.support.hub._content import Content, Held, blob_id, content_of, sha256_of

# Names whose files lie in the large-file store, as the `.gitattributes` of a new repository says.
LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".onnx")

Sources = Mapping[str, bytes | str | Path | Content]  # what a test gives: a content for each path in the repository


@dataclass(frozen=True)
class StoredFile:
    """One file of one commit."""

    path: str
    content: Content

    @property
    def large(self) -> bool:
        """Whether it lies in the large-file store, and is fetched from another host."""
        return self.path.endswith(LFS_SUFFIXES)

    @property
    def size(self) -> int:
        """Bytes of the file itself, not of its pointer."""
        return self.content.size

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the bytes."""
        return sha256_of(self.content)

    @cached_property
    def pointer(self) -> bytes:
        """What git holds in place of a large file."""
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @cached_property
    def blob_id(self) -> str:
        """The id of the blob in git: of the pointer, where the file is large."""
        return blob_id(Held(self.pointer) if self.large else self.content)

    @property
    def etag(self) -> str:
        """What the hub calls this version of the file: the sha256 of a large one, the blob id of a small one."""
        return self.sha256 if self.large else self.blob_id

    @property
    def xet_hash(self) -> str:
        """The name of a large file at the CDN. Its ETag there is this, and not the sha256 that the hub announced."""
        return hashlib.sha256(b"xet " + self.sha256.encode()).hexdigest()


@dataclass(frozen=True)
class Commit:
    """The files at one point of the history."""

    id: str
    files: Mapping[str, StoredFile]

    @classmethod
    def of(cls, name: str, files: Mapping[str, StoredFile], parent: str = "") -> "Commit":
        """The commit of these files; its id follows from the names, the bytes and the parent."""
        lines = [name, parent, *(f"{path} {files[path].blob_id}" for path in sorted(files))]
        return cls(
            hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest(),
            {path: files[path] for path in sorted(files)},
        )


@dataclass(frozen=True)
class Repository:
    """A model repository.

    `access` is what the hub knows: `gated` lists its files to everybody and gives them to the `readers` only; `private`
    does not exist for anybody else.
    """

    name: str
    branches: Mapping[str, str]
    commits: Mapping[str, Commit]
    access: Literal["public", "gated", "private"] = "public"
    readers: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(
        cls,
        name: str,
        sources: Sources,
        *,
        access: Literal["public", "gated", "private"] = "public",
        readers: frozenset[str] = frozenset(),
    ) -> "Repository":
        """A repository with one commit on `main`."""
        first = Commit.of(name, _stored(sources))
        return cls(name, {"main": first.id}, {first.id: first}, access, readers)

    @property
    def key(self) -> str:
        """What stands for the repository in addresses at the CDN."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:24]

    @property
    def head(self) -> Commit:
        """The newest commit on `main`."""
        return self.commits[self.branches["main"]]

    def commit(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag or a full id; None where there is none."""
        return self.commits.get(self.branches.get(revision, revision))

    def with_commit(self, sources: Sources) -> "Repository":
        """The repository after a commit that changes or adds these files. Older commits stay readable by their ids."""
        made = Commit.of(self.name, {**self.head.files, **_stored(sources)}, self.head.id)
        return replace(self, branches={"main": made.id}, commits={**self.commits, made.id: made})


def _stored(sources: Sources) -> dict[str, StoredFile]:
    return {path: StoredFile(path, content_of(source)) for path, source in sources.items()}
