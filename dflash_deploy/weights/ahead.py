"""Metadata of weights on the Hugging Face Hub, read before the weights are downloaded.

A GGUF's header is the beginning of the file. Its bytes are kept, and the download continues after them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath

from dflash_deploy.errors import DownloadFailed, FileMissing, FileRefused, WeightsMissing
from dflash_deploy.intake.files import MIB, read_bytes
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.serve.engines.vllm_question import has_tokenizer
from dflash_deploy.weights.checkpoints import LARGEST_CONFIG, HubMetadata
from dflash_deploy.weights.download import Download, DownloadOptions, Transfer
from dflash_deploy.weights.fetch import (
    check_room,
    download_client,
    fetch,
    locked_staging,
    missing_files,
    named_write_errors,
)
from dflash_deploy.weights.gguf import LONGEST, Header, HeaderEnds, NotGguf, parse_header, read_header
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel, Role
from dflash_deploy.weights.pull import RequestedModel, lock_for, network_is_refused

# Metadata files of target and drafter: a few kilobytes.
CONFIGS = frozenset({"config.json", "hf_quant_config.json", "tokenizer_config.json"})

FIRST = 1 << 20  # bytes of a GGUF that are read first for its header


def read_hub_metadata(source: Source, wanted: Iterable[RequestedModel], lock: Lock) -> HubMetadata:
    """Download only the metadata into the models' directories, and return it.

    Raises DownloadFailed, and the errors of refused requests.
    """
    headers: dict[Role, Header] = {}
    names: dict[Role, frozenset[str]] = {}
    for requested in wanted:
        model = lock.models[requested.role]
        names[requested.role] = frozenset(file.path for file in model.files)
        fetch(source, model.only(CONFIGS), requested.directory, DownloadOptions())
        # the first name is the model, the second its projector
        for file in model.files:
            if requested.names and file.path == requested.names[0]:
                headers[requested.role] = header_of(source, model, file, requested.directory, DownloadOptions())
    return HubMetadata(headers, names)


def header_of(
    source: Source, model: LockedModel, file: LockedFile, directory: Path, options: DownloadOptions
) -> Header:
    """Return the header of a GGUF: from the file on disk, else from its first bytes on the Hub.

    Raises DownloadFailed if the file is not a GGUF or cannot be downloaded.
    """
    try:
        if not missing_files(directory, model.only({file.path})):
            return read_header(directory / file.path, tensors=True)
        with named_write_errors(directory), locked_staging(directory) as staging:
            check_room(directory, min(file.size, LONGEST), model)
            return _fetched(source, model, file, staging, options)
    except NotGguf as problem:
        raise DownloadFailed(
            f"{model.repo}: {file.path} is not a valid GGUF: {problem}",
            hint="choose another file of the repository, or another repository",
        ) from None


def _fetched(source: Source, model: LockedModel, file: LockedFile, staging: Path, options: DownloadOptions) -> Header:
    until, restarted = min(FIRST, file.size), False
    with download_client() as client, Download(Transfer(source, model, client, options), file, staging) as download:
        while True:
            download.run(until)
            try:
                return parse_header(BytesIO(os.pread(download.descriptor, until, 0)), file.path, tensors=True)
            except HeaderEnds:
                if until >= min(file.size, LONGEST):
                    raise
                until = min(4 * until, file.size)
            except NotGguf:
                # wrong bytes may have arrived on the way: once more from the start
                download.begin_again()
                if restarted:
                    raise
                restarted = True


CONFIG = "config.json"

_OF_DRAFTER = frozenset({CONFIG, "hf_quant_config.json"})

_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})

LARGEST = 64 * MIB  # bytes of the largest file: a tokenizer has up to 20 MiB


def lay_out(
    directory: Path, place: Path, role: str, requested: RequestedModel | None, source: Source, lock: Lock | None
) -> None:
    """Fill `place` with the configuration of the model in `directory`, or in the repository that is requested.

    Raises WeightsMissing if config.json is damaged, or is neither on disk nor in a repository, and DownloadFailed.
    """
    place.mkdir(parents=True)
    if _checked(directory, role):
        for entry in directory.iterdir():
            if _is_metadata(entry) and entry.is_file() and entry.stat().st_size <= LARGEST:
                (place / entry.name).write_bytes(read_bytes(entry, limit=LARGEST))
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
    return {one.path for one in model.files if _is_metadata(PurePosixPath(one.path)) and one.size <= LARGEST}


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


def _is_metadata(path: PurePath) -> bool:
    """Whether a name is that of a configuration, a tokenizer or a chat template, and not the index of the weights."""
    return path.suffix in _SUFFIXES and not path.name.startswith(".") and not path.name.endswith(".index.json")
