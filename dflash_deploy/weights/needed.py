"""Which files of a repository an engine needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from dflash_deploy.weights.lockfile import LockedFile, Role

_BESIDE_WEIGHTS = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
"""Configuration, tokenizer, chat template, processor: whatever of it there is."""

_NEVER = frozenset({"README.md", "LICENSE.txt"})


def needed(files: Iterable[LockedFile], role: Role, names: Iterable[str] = ()) -> tuple[LockedFile, ...]:
    """The files that are wanted. `names` are the only ones where a GGUF, and its projector, are used.

    Of other repositories: safetensors and what lies beside them, at the top; no second copy in another format, no code
    (engines have the classes of all pairs of the catalog themselves), no pictures.
    """
    wanted = frozenset(name for name in names if name)
    if wanted:
        return tuple(file for file in files if file.path in wanted)
    return tuple(file for file in files if _is_needed(PurePosixPath(file.path), role))


def _is_needed(path: PurePosixPath, role: Role) -> bool:
    if len(path.parts) > 1 or path.name in _NEVER:
        return False
    if path.suffix == ".safetensors":
        return True
    # a drafter may bring the embedding of its mask token apart (vLLM v1/spec_decode)
    return path.suffix in _BESIDE_WEIGHTS or (role == "drafter" and path.name == "mask_embedding.pt")
