"""The files of a repository that an engine needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from dflash_deploy.weights.lockfile import LockedFile, Role

_BESIDE_WEIGHTS = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
"""Suffixes of configuration, tokenizer, chat template and processor files."""

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
