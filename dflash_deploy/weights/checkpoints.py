"""Metadata of weights on disk and on the Hugging Face Hub, for the rules that check a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import MIB, Invalid, parse_object, read_bytes
from dflash_deploy.plan import Checkpoints
from dflash_deploy.plan.command import drafter_directory
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import tensor_names
from dflash_deploy.weights.gguf import Header, NotGguf, read_header
from dflash_deploy.weights.lockfile import Role

LARGEST_CONFIG = 16 * MIB
"""Bytes of config.json or tokenizer_config.json; those with the most added tokens have one."""

TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"})
TEMPLATES = frozenset({"chat_template.jinja", "chat_template.json"})


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
    if target is None or directory is None:
        return Checkpoints(target, drafter)
    if file:
        return Checkpoints(target, drafter, "tokenizer.ggml.model" in target, "tokenizer.chat_template" in target)
    names = _names(directory) | ahead.names.get("target", frozenset())
    # the headers of all shards are read only if the answer matters
    head = _has_head(directory, target) if settings.uses_mtp_head else None
    return Checkpoints(target, drafter, bool(names & TOKENIZERS), _has_template(directory, names), head)


def metadata_in(directory: Path) -> Mapping[str, object] | None:
    """Return the config.json of a directory, with ModelOpt's quantization; `None` if it is missing or damaged."""
    return _read(directory, "")


def _names(directory: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in directory.iterdir())
    except OSError:
        return frozenset()


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
    if config is None or "quantization_config" in config:
        return config
    return {**config, **_modelopt(directory)}


def _modelopt(directory: Path) -> dict[str, object]:
    """Return the quantization that ModelOpt writes to a separate file, hf_quant_config.json."""
    stated = (read_config(directory / "hf_quant_config.json") or {}).get("quantization")
    return {"quantization_config": {"quant_method": "modelopt", **stated}} if isinstance(stated, dict) else {}


def read_config(path: Path) -> Mapping[str, object] | None:
    """Return a config.json or tokenizer_config.json; `None` if it is missing or damaged."""
    try:
        return parse_object(read_bytes(path, limit=LARGEST_CONFIG))
    except (FileRefused, Invalid):
        return None
