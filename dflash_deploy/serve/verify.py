"""Proof, at build time, that an image can do what it is for: its vLLM carries DFlash, and finds our loader.

Looks for the two modules by file, since importing them needs the hardware that a build machine lacks.
"""

from __future__ import annotations

import sys
from importlib import metadata, util
from pathlib import Path

from dflash_deploy.serve.engine import installed_engine
from dflash_deploy.serve.nvfp4.plugin import NAME
from dflash_deploy.serve.vllm import has_dflash

MODULES = ("v1/spec_decode/dflash.py", "model_executor/models/qwen3_dflash.py")
"""The proposer (mask tokens in, draft tokens out) and the drafter's model, in every vLLM since 0.20.0."""

ARCHITECTURE = "DFlashDraftModel"
"""What drafters call themselves in config.json; the model registry must know it."""

PLUGINS = "vllm.general_plugins"
"""The group of entry points that vLLM loads in each of its processes."""


def shortcomings() -> list[str]:
    """What this installation lacks for DFlash; empty where it lacks nothing."""
    engine, spec = installed_engine(), util.find_spec("vllm")
    if engine is None or spec is None or spec.origin is None:
        return ["vLLM is not installed"]
    root = Path(spec.origin).parent
    missing = [f"vllm/{module} is missing" for module in MODULES if not (root / module).is_file()]
    if not has_dflash(engine.version, cpu=engine.cpu):
        missing.append(f"vLLM {engine.version} is older than DFlash")
    registry = root / "model_executor/models/registry.py"
    if not registry.is_file() or ARCHITECTURE not in registry.read_text(encoding="utf-8"):
        missing.append(f"the model registry does not know {ARCHITECTURE}")
    if NAME not in metadata.entry_points(group=PLUGINS).names:
        missing.append(f"no distribution offers {NAME} to vLLM: NVFP4_AWQ checkpoints would be refused")
    return missing


if __name__ == "__main__":
    found = shortcomings()
    for line in found:
        print(f"dflash: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)
