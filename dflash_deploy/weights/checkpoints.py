"""Metadata of weights on disk and on the Hugging Face Hub, for the rules that check a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.files import MIB, open_file, read_bytes
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.plan.command import drafter_directory
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Checkpoints
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import parts_of, tensor_names, weight_files
from dflash_deploy.weights.gguf import Header, NotGguf, read_header
from dflash_deploy.weights.lock import Role

LARGEST_CONFIG = 16 * MIB  # bytes of config.json or tokenizer_config.json; those with the most added tokens have one
TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"})
TEMPLATES = frozenset({"chat_template.jinja", "chat_template.json"})
# Files of which transformers reads the processor of images from the first that is there (5.19,
# models/auto/image_processing_auto.py).
PROCESSORS = frozenset({"preprocessor_config.json", "processor_config.json"})

# Bytes of tokenizer.json with the added tokens, which the tokenizers library writes before all others.
LARGEST_ADDED = 4 * MIB

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
        size = _size(directory / name for name in parts_of(file))
        return replace(known, tokenizer=found[0], template=found[1], projector=projector, target_bytes=size)
    # the headers of all shards are read only if the answer matters
    head = _has_head(directory, target) if settings.uses_mtp_head else None
    known = replace(known, head=head, largest_token=_largest_token(directory))
    names = _names(directory) | ahead.names.get("target", frozenset())
    if not any(name.endswith(".safetensors") for name in names):
        # what an interrupted download has not fetched yet is not missing
        return known
    template = _has_template(directory, names)
    known = replace(known, target_bytes=_size(_shards(directory)))
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


def _size(files: Iterable[Path]) -> int | None:
    """Return the bytes of these files; `None` if there are none, or one is missing."""
    try:
        return sum(file.stat().st_size for file in files) or None
    except OSError:
        return None


def _shards(directory: Path) -> list[Path]:
    with suppress(FileRefused, OSError, Invalid):
        return [directory / name for name in weight_files(directory)]
    return []


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
