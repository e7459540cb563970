"""Proof, at build time and by `image verify`, that an image can do what it is for: its engine carries DFlash.

Looks for files and for words in them: importing or starting an engine needs the hardware that a build machine lacks.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

from dflash_deploy.serve.engine import installed_engine
from dflash_deploy.serve.engines.vllm import has_dflash
from dflash_deploy.serve.launch import FAMILY, LLAMA_SERVER
from dflash_deploy.serve.nvfp4.plugin import NAME

MODULES = ("v1/spec_decode/dflash.py", "model_executor/models/qwen3_dflash.py")
"""The proposer (mask tokens in, draft tokens out) and the drafter's model, in every vLLM since 0.20.0."""

ARCHITECTURE = "DFlashDraftModel"
"""What drafters call themselves in config.json; the model registry must know it."""

SGLANG_MODULE = "srt/models/dflash.py"
"""What `--speculative-algorithm DFLASH` is to SGLang, from 0.5.11 on."""

PLUGINS = "vllm.general_plugins"
"""The group of entry points that vLLM loads in each of its processes."""

LLAMACPP_WORDS = {"llamacpp": b"draft-dflash", "llamacpp-buun": b"dflash-max-slots"}
"""Options that a llama.cpp with DFlash has: upstream from b10068 on, and the fork."""


def shortcomings(environment: Mapping[str, str] = os.environ, server: Path = Path(LLAMA_SERVER)) -> list[str]:
    """What this installation lacks for DFlash; empty where it lacks nothing."""
    family = environment.get(FAMILY) or "vllm"
    if family in LLAMACPP_WORDS:
        return _llamacpp(server, LLAMACPP_WORDS[family])
    return _sglang() if family == "sglang" else _vllm()


def _vllm() -> list[str]:
    engine, root = installed_engine(), _package("vllm")
    if engine is None or root is None:
        return ["vLLM is not installed"]
    missing = [f"vllm/{module} is missing" for module in MODULES if not (root / module).is_file()]
    if not has_dflash(engine.version, cpu=engine.cpu):
        missing.append(f"vLLM {engine.version} is older than DFlash")
    registry = root / "model_executor/models/registry.py"
    if not registry.is_file() or ARCHITECTURE not in registry.read_text(encoding="utf-8"):
        missing.append(f"the model registry does not know {ARCHITECTURE}")
    if NAME not in metadata.entry_points(group=PLUGINS).names:
        missing.append(f"no distribution offers {NAME} to vLLM: NVFP4_AWQ checkpoints would be refused")
    return missing


def _sglang() -> list[str]:
    root = _package("sglang")
    if root is None:
        return ["SGLang is not installed"]
    return [] if (root / SGLANG_MODULE).is_file() else [f"sglang/{SGLANG_MODULE} is missing: it came with 0.5.11"]


def _llamacpp(server: Path, word: bytes) -> list[str]:
    """The option may stand in the server itself or in a library beside it."""
    if not server.is_file():
        return [f"{server} is missing"]
    beside = [server, *sorted(server.parent.glob("*.so*"))]
    return [] if any(_holds(file, word) for file in beside) else [f"{server} has no option {word.decode()}"]


def _holds(file: Path, word: bytes) -> bool:
    if file.stat().st_size == 0:
        return False
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(word) >= 0


def _package(name: str) -> Path | None:
    spec = util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


if __name__ == "__main__":
    found = shortcomings()
    for line in found:
        print(f"dflash: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)
