"""What the weights on this machine say of themselves, for the rules that a plan is held against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from dflash_deploy.plan import Checkpoints
from dflash_deploy.plan.command import drafter_host_path
from dflash_deploy.weights.gguf import NotGguf, read_header


def read_checkpoints(values: Mapping[str, str], resolve: Callable[[str], Path]) -> Checkpoints:
    """Read config.json, or the header of a GGUF, of target and drafter. What is not there or damaged is `None`.

    `values` are settings; `resolve` turns a path of `.env` into one of this machine.
    """
    target, drafter = values.get("MODEL_HOST_PATH", ""), drafter_host_path(values)
    return Checkpoints(
        target=_read(resolve(target), values.get("MODEL_FILE", "")) if target else None,
        drafter=_read(resolve(drafter), values.get("DRAFTER_FILE", "")) if drafter else None,
    )


def _read(directory: Path, file: str) -> Mapping[str, object] | None:
    try:
        if file:
            return dict(read_header(directory / file))
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, NotGguf):
        return None
    if not isinstance(config, dict):
        return None
    return config | _modelopt(directory) if "quantization_config" not in config else config


def _modelopt(directory: Path) -> dict[str, object]:
    """ModelOpt writes its quantisation into a file of its own, hf_quant_config.json."""
    try:
        stated = json.loads((directory / "hf_quant_config.json").read_text(encoding="utf-8"))["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"quantization_config": {"quant_method": "modelopt", **stated}} if isinstance(stated, dict) else {}
