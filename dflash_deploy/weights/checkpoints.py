"""Metadata of weights on disk and on the Hugging Face Hub, for the rules that check a plan before a download."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath

from dflash_deploy.errors import DownloadFailed, FileMissing, FileRefused, WeightsMissing
from dflash_deploy.intake.files import MIB, open_file, read_bytes
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.plan.command import drafter_directory
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Checkpoints
from dflash_deploy.serve.engines.vllm_question import has_tokenizer
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import tensor_names
from dflash_deploy.weights.fetch import (
    Download,
    DownloadOptions,
    Transfer,
    check_room,
    download_client,
    fetch,
    locked_staging,
    missing_files,
    named_write_errors,
    open_progress,
    part_files,
)
from dflash_deploy.weights.gguf import LONGEST, Header, HeaderEnds, NotGguf, parse_header, read_header
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel, Role
from dflash_deploy.weights.pull import RequestedModel, lock_for, network_is_refused

LARGEST_CONFIG = 16 * MIB
"""Bytes of config.json or tokenizer_config.json; those with the most added tokens have one."""

TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"})
TEMPLATES = frozenset({"chat_template.jinja", "chat_template.json"})
PROCESSORS = frozenset({"preprocessor_config.json", "processor_config.json"})
"""Files of which transformers reads the processor of images from the first that is there (5.19,
models/auto/image_processing_auto.py)."""

LARGEST_ADDED = 4 * MIB
"""Bytes of tokenizer.json with the added tokens, which the tokenizers library writes before all others."""

_TOKEN_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,9})\b')


@dataclass(frozen=True)
class HubMetadata:
    """Metadata of weights before their download: headers of GGUFs, and the names of all files on the Hub."""

    headers: Mapping[Role, Header] = field(default_factory=dict)
    names: Mapping[Role, frozenset[str]] = field(default_factory=dict)


NO_HUB_METADATA = HubMetadata()


def read_checkpoints(
    settings: Settings, resolve: Callable[[str], Path], ahead: HubMetadata = NO_HUB_METADATA
) -> Checkpoints:
    """Read config.json, or the header of a GGUF, of target and drafter; `None` if it is missing or damaged.

    `resolve` turns a path of `.env` into a path of this machine.
    """
    place, file = settings.model_host_path, settings.model_file
    directory = resolve(place) if place else None
    target = ahead.headers.get("target") or _read(directory, file)
    drafter_place = drafter_directory(settings)
    drafter = ahead.headers.get("drafter") or _read(
        resolve(drafter_place) if drafter_place else None, settings.drafter_file
    )
    known = Checkpoints(target, drafter, snapshots=dict(_snapshots(settings, resolve)))
    if target is None or directory is None:
        return known
    if file:
        found = "tokenizer.ggml.model" in target, "tokenizer.chat_template" in target
        projector = metadata_of(_read(directory, settings.mmproj_file)).architecture if settings.mmproj_file else None
        return replace(known, tokenizer=found[0], template=found[1], projector=projector)
    # the headers of all shards are read only if the answer matters
    head = _has_head(directory, target) if settings.uses_mtp_head else None
    known = replace(known, head=head, largest_token=_largest_token(directory))
    names = _names(directory) | ahead.names.get("target", frozenset())
    if not any(name.endswith(".safetensors") for name in names):
        # what an interrupted download has not fetched yet is not missing
        return known
    template = _has_template(directory, names)
    return replace(known, tokenizer=bool(names & TOKENIZERS), template=template, processor=bool(names & PROCESSORS))


def metadata_in(directory: Path) -> Mapping[str, object] | None:
    """Return the config.json of a directory, with ModelOpt's quantization; `None` if it is missing or damaged."""
    return _read(directory, "")


def _names(directory: Path) -> frozenset[str]:
    """Return the names of all files; none while a download is incomplete."""
    try:
        unfinished = any((directory / ".pull").glob("*.part"))
        return frozenset(entry.name for entry in directory.iterdir() if not unfinished)
    except OSError:
        return frozenset()


def _largest_token(directory: Path) -> int | None:
    with suppress(FileRefused, OSError), open_file(directory / "tokenizer.json") as file:
        return max(map(int, _TOKEN_ID.findall(file.read(LARGEST_ADDED))), default=None)
    return None


def _snapshots(settings: Settings, resolve: Callable[[str], Path]) -> Iterator[tuple[str, str]]:
    """Yield each setting that names a model's folder in the cache of the Hub's client, with its newest snapshot."""
    for setting in (Settings.model_host_path, Settings.drafter_host_path, Settings.dflash_drafter):
        place = resolve(settings[setting]) if settings[setting] else Path()
        place = place if place.name == "snapshots" else place / "snapshots"
        with suppress(OSError, ValueError):
            if (place.parent / "blobs").is_dir():
                yield setting.name, str(max(place.iterdir(), key=lambda entry: entry.stat().st_mtime))


def _has_head(directory: Path, config: Mapping[str, object]) -> bool | None:
    """Return whether there is an MTP head: a tensor `mtp.*` or of a layer after the last; `None` if unreadable."""
    beyond = f".layers.{metadata_of(config).layers}."
    try:
        names = tensor_names(directory)
    except (FileRefused, OSError, EOFError, Invalid):
        return None
    return any(name.startswith("mtp.") or ".mtp." in name or beyond in name for name in names) if names else None


def _has_template(directory: Path, names: frozenset[str]) -> bool | None:
    """Return whether there is a chat template, as a file or in tokenizer_config.json; `None` if that is missing."""
    if names & TEMPLATES:
        return True
    if "tokenizer_config.json" not in names:
        return False
    config = read_config(directory / "tokenizer_config.json")
    return None if config is None else bool(config.get("chat_template"))


def _read(directory: Path | None, file: str) -> Mapping[str, object] | None:
    if directory is None:
        return None
    if file:
        try:
            return dict(read_header(directory / file))
        except (FileRefused, NotGguf):
            return None
    config = read_config(directory / "config.json")
    return None if config is None else with_modelopt(config, read_config(directory / "hf_quant_config.json"))


def with_modelopt(config: Mapping[str, object], separate: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return a config.json with the quantization that ModelOpt writes to a separate file, hf_quant_config.json."""
    stated = (separate or {}).get("quantization")
    if "quantization_config" in config or not isinstance(stated, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **stated}}


def read_config(path: Path) -> Mapping[str, object] | None:
    """Return a config.json or tokenizer_config.json; `None` if it is missing or damaged."""
    try:
        return parse_object(read_bytes(path, limit=LARGEST_CONFIG))
    except (FileRefused, Invalid):
        return None


CONFIGS = frozenset({"config.json", "hf_quant_config.json", "tokenizer_config.json"})
"""Metadata files of target and drafter: a few kilobytes."""

FIRST = 1 << 20
"""Bytes of a GGUF that are read first for its header."""


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
    record, part = part_files(staging, file)
    progress = open_progress(record, part, file)
    until, restarted = min(FIRST, file.size), False
    with (
        download_client() as client,
        Download(Transfer(source, model, client, options), file, part, progress) as download,
    ):
        while True:
            for span in progress.spans:
                download.run(span, until)
            try:
                return parse_header(BytesIO(os.pread(download.descriptor, until, 0)), file.path, tensors=True)
            except HeaderEnds:
                if until >= min(file.size, LONGEST):
                    raise
                until = min(4 * until, file.size)
            except NotGguf:
                # wrong bytes may have arrived on the way: once more from the start
                progress.reset()
                if restarted:
                    progress.save()
                    raise
                restarted = True


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
    fetch(source, model.only(_metadata_names(model, requested.role) - _files_in(place)), place, DownloadOptions())
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
        return _metadata_names(known, requested.role) <= _files_in(place)
    return has_tokenizer(place)


def _metadata_names(model: LockedModel, role: Role) -> set[str]:
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
