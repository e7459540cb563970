"""Which settings exist. The commented templates are the list: what stands in one is a setting, in that order."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from dflash_deploy.assets import asset

TemplateName = Literal["vllm", "sglang", "llamacpp"]

_TEMPLATES: dict[str, TemplateName] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "llamacpp-buun": "llamacpp",
}


def template_of(engine: str) -> TemplateName:
    """The template of an engine's command line."""
    return _TEMPLATES[engine]


@cache
def template_text(template: TemplateName) -> str:
    """The commented `.env` of one engine, all values empty."""
    return asset("env-templates", f"{template}.env").read_text(encoding="utf-8")


@cache
def setting_names(template: TemplateName) -> tuple[str, ...]:
    """The names of one engine's settings, in the order of its template."""
    return tuple(re.findall(r"^([A-Z][A-Z0-9_]*)=", template_text(template), re.MULTILINE))


@cache
def all_setting_names() -> tuple[str, ...]:
    """The names of the settings of all engines."""
    return tuple(
        dict.fromkeys(name for template in sorted(set(_TEMPLATES.values())) for name in setting_names(template))
    )


_PASSED_ON = (
    "VLLM_",
    "NCCL_",
    "GLOO_",
    "TORCH",
    "PYTORCH_",
    "NVIDIA_",
    "CUDA_",
    "HF_",
    "OMP_",
    "TRITON_",
    "FLASHINFER_",
)
"""Prefixes of variables that vLLM and its libraries read themselves; `.env` may hold any of them."""


def passed_on(name: str) -> bool:
    """Whether a variable that is no setting belongs to the engine and is handed over as it is."""
    return name.startswith(_PASSED_ON)
