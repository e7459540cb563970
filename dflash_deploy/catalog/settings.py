"""Which settings an engine's `.env` has, and the commented templates in env-templates/."""

from __future__ import annotations

from functools import cache

from dflash_deploy.assets import asset_text
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.settings import Settings


@cache
def template_text(template: str) -> str:
    """The commented `.env` of a template in env-templates/, all values empty."""
    return asset_text("env-templates", f"{template}.env")


@cache
def setting_names(engine: str) -> tuple[str, ...]:
    """The names of one engine's settings, in the order of its template."""
    return tuple(field.name for field in ENGINES[engine].settings)


@cache
def all_setting_names() -> tuple[str, ...]:
    """The names of the settings of all engines."""
    return tuple(field.name for field in Settings.fields() if not field.internal)


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
"""Prefixes of variables that vLLM and its libraries read themselves; `.env` may contain any of them."""


def passed_on(name: str) -> bool:
    """Whether a variable that is not a setting belongs to the engine and is passed on unchanged."""
    return name.startswith(_PASSED_ON)
