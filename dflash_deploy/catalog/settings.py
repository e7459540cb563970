"""Which settings an engine's `.env` has, and what they mean: the manual of each engine in env-templates/."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dflash_deploy.assets import asset_text
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class Described:
    """One setting of a manual: its section, and its meaning."""

    section: str
    text: str


@cache
def manual(template: str) -> Mapping[str, Described]:
    """The settings of a manual in env-templates/ by name. Settings after one comment share it."""
    found: dict[str, Described] = {}
    section, comment, after_setting = "", "", False
    for line in asset_text("env-templates", f"{template}.env").splitlines():
        if title := re.fullmatch(r"# --- (.+?) -+", line):
            section, comment = title[1], ""
        elif line.startswith("#"):
            comment = line[2:] if after_setting or not comment else f"{comment} {line[2:]}"
        elif "=" in line:
            found[line.partition("=")[0]] = Described(section, comment)
        elif not line:
            comment = ""
        after_setting = "=" in line and not line.startswith("#")
    return found


def kind_of(field: Field[Any], quote: str = "") -> str:
    """The values of a setting, with the unit: the docstring of the function that reads it, or the words of a choice."""
    allowed = inspect.getclosurevars(field.kind).nonlocals.get("allowed")
    if allowed:
        return " or ".join(f"{quote}{word}{quote}" for word in allowed)
    words = (inspect.getdoc(field.kind) or "").partition("\n")[0].rstrip(".")
    kind = words[:1].lower() + words[1:]
    return f"{kind} ({field.unit})" if field.unit and field.unit not in kind else kind


@cache
def setting_names(engine: str) -> tuple[str, ...]:
    """The names of one engine's settings, in the order of its template."""
    return tuple(field.name for field in ENGINES[engine].settings)


@cache
def all_setting_names() -> tuple[str, ...]:
    """The names of the settings of all engines."""
    return tuple(field.name for field in Settings.fields() if not field.internal)


# Prefixes of variables that vLLM and its libraries read themselves; `.env` may contain any of them.
_PASSED_ON = (
    "VLLM_",
    "NCCL_",
    "GLOO_",
    "TP_SOCKET_",
    "UCX_",
    "TORCH",
    "PYTORCH_",
    "NVIDIA_",
    "CUDA_",
    "HF_",
    "OMP_",
    "TRITON_",
    "FLASHINFER_",
)


def passed_on(name: str) -> bool:
    """Whether a variable that is not a setting belongs to the engine and is passed on unchanged."""
    return name.startswith(_PASSED_ON)
