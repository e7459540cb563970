"""config.json and the other small files of a model in a directory of their own, without weights.

Those on disk are copied. Missing ones, such as after an interrupted download, are fetched: of a drafter only
config.json, of a target also the tokenizer and the processor of images, without which an engine takes it for a model
that reads text only.
"""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath

from dflash_deploy.errors import FileMissing, FileRefused, WeightsMissing
from dflash_deploy.intake import MIB, Invalid, parse_object, read_bytes
from dflash_deploy.serve.engines.vllm_question import has_tokenizer
from dflash_deploy.weights.checkpoints import LARGEST_CONFIG
from dflash_deploy.weights.fetch import DownloadOptions, fetch
from dflash_deploy.weights.lockfile import Lock, LockedFile, LockedModel, Role
from dflash_deploy.weights.pull import RequestedModel, lock_for, network_is_refused
from dflash_deploy.weights.source import Source

CONFIG = "config.json"

_OF_DRAFTER = frozenset({CONFIG, "hf_quant_config.json"})

_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})

LARGEST = 64 * MIB
"""Bytes of the largest file: a tokenizer has up to 20 MiB."""


def lay_out(
    directory: Path, place: Path, role: str, requested: RequestedModel | None, source: Source, lock: Lock | None
) -> None:
    """Fill `place` with the configuration of the model in `directory`, or in the repository that is requested.

    Raises WeightsMissing if config.json is damaged, or is neither on disk nor in a repository, and DownloadFailed.
    """
    place.mkdir(parents=True)
    if _checked(directory, role):
        _copy(directory, place)
        if requested is None or network_is_refused() or _is_complete(place, requested, lock):
            return
    if requested is None or network_is_refused():
        why = "HF_HUB_OFFLINE is set" if requested else "its repository is not known"
        raise WeightsMissing(
            f"the {role}'s {CONFIG} is not in {directory}, and {why}",
            hint="the engine decides from it: put it into the directory, or run `dflash-deploy pull`",
        )
    model = lock_for((requested,), lock, source).models[requested.role]
    # the question is about the files on disk, also if they differ from the lock's
    fetch(source, model.only(_names(model, requested.role) - _files_in(place)), place, DownloadOptions())
    if not _checked(place, role):
        raise WeightsMissing(
            f"{requested.repo} has no {CONFIG}", hint="choose a repository with weights in Transformers format"
        )


def _is_complete(place: Path, requested: RequestedModel, lock: Lock | None) -> bool:
    """Whether nothing is missing: by the lock's list of files, else by the tokenizer."""
    if requested.role == "drafter":
        return True
    known = lock.models.get(requested.role) if lock is not None else None
    if known is not None and known.repo.lower() == requested.repo.lower():
        return _names(known, requested.role) <= _files_in(place)
    return has_tokenizer(place)


def _names(model: LockedModel, role: Role) -> set[str]:
    """The files of a model that an engine decides from."""
    if role == "drafter":
        return {file.path for file in model.files if file.path in _OF_DRAFTER}
    return {file.path for file in model.files if _is_small(file)}


def _files_in(place: Path) -> set[str]:
    return {entry.name for entry in place.iterdir()}


def _checked(directory: Path, role: str) -> bool:
    """Whether there is a config.json. Raises WeightsMissing if it is not one."""
    try:
        parse_object(read_bytes(directory / CONFIG, limit=LARGEST_CONFIG))
    except FileMissing:
        return False
    except FileRefused as problem:
        raise WeightsMissing(f"the {role}: {problem.message}", hint=problem.hint) from None
    except Invalid as problem:
        raise WeightsMissing(
            f"the {role}'s {directory / CONFIG} {problem}", hint="fetch it again with `dflash-deploy pull`"
        ) from None
    return True


def _is_small(file: LockedFile) -> bool:
    return _is_metadata(PurePosixPath(file.path)) and file.size <= LARGEST


def _is_metadata(path: PurePath) -> bool:
    """Whether a name is that of a configuration, a tokenizer or a chat template, and not the index of the weights."""
    return path.suffix in _SUFFIXES and not path.name.startswith(".") and not path.name.endswith(".index.json")


def _copy(directory: Path, place: Path) -> None:
    for entry in directory.iterdir():
        if _is_metadata(entry) and entry.is_file() and entry.stat().st_size <= LARGEST:
            (place / entry.name).write_bytes(read_bytes(entry, limit=LARGEST))
