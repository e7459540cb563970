"""All facts of the machine in one immutable value, its free disk space, and its kernel log.

Free space is read also for a directory that does not exist yet. Only the kernel log has the process that the kernel
killed when the machine was out of memory.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy.errors import EngineMissing
from dflash_deploy.host.ask import ContainerEngine, ask, container_engine
from dflash_deploy.host.gpu import Gpu, kernel_text, read_gpus, read_memory
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.installed import InstalledEngine


@dataclass(frozen=True)
class HostFacts:
    """The facts about a machine that `plan` uses. Memory is in bytes, `None` if the system does not report it.

    `native_engines` are the installed engines by name. `gpu_problem` says why a machine that seems to have GPUs reports
    none, or too few; otherwise it is empty. `cpus` are the cores that this process may use. `no_docker` is why Docker
    did not respond, and what to do; both are empty if it did.
    """

    architecture: str
    cpus: int
    memory_total: int | None
    memory_available: int | None
    gpus: tuple[Gpu, ...]
    container_engine: ContainerEngine | None
    native_engines: Mapping[str, InstalledEngine]
    gpu_problem: str = ""
    no_docker: tuple[str, str] = ("", "")


def read_facts() -> HostFacts:
    """Read this machine. Facts that cannot be read are missing from the result; no error is raised."""
    memory, reading = read_memory(), read_gpus()
    docker, problem = _docker()
    return HostFacts(
        architecture=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        gpus=reading.gpus,
        container_engine=docker,
        native_engines={name: found for name, one in ENGINES.items() if (found := one.installed()) is not None},
        gpu_problem=reading.problem,
        no_docker=problem,
    )


def with_named_slices(facts: HostFacts, visible: str) -> HostFacts:
    """The facts with the MIG slices that CUDA_VISIBLE_DEVICES names as the only GPUs; unchanged if it names none."""
    slices = {one.uuid: one for gpu in facts.gpus for one in gpu.slices}
    named = tuple(slices[word.strip()] for word in visible.split(",") if word.strip() in slices)
    return replace(facts, gpus=named) if named else facts


def _docker() -> tuple[ContainerEngine | None, tuple[str, str]]:
    try:
        return container_engine(), ("", "")
    except EngineMissing as missing:
        return None, (missing.message, missing.hint)


@dataclass(frozen=True)
class DiskRoom:
    """The file system of a path: an existing directory on it, its device number, and its free bytes for this user."""

    directory: Path
    device: int
    free: int


def disk_room(path: Path) -> DiskRoom | None:
    """The file system of a path that exists or will exist; `None` if this user has no permission to read it."""
    for directory in (path, *path.parents):
        try:
            return DiskRoom(directory, directory.stat().st_dev, shutil.disk_usage(directory).free)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
    return None


def bytes_under(directory: Path) -> int:
    """The bytes of a file, or of all files under a directory. Links are followed; each file is counted once."""
    if directory.is_file():
        return directory.stat().st_size
    sizes: dict[tuple[int, int], int] = {}
    for root, _, names in os.walk(directory, onerror=None):
        for name in names:
            try:
                status = (Path(root) / name).stat()
            except OSError:
                continue
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def read_limits(proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> dict[str, float]:
    """The limits of this process that are set, by the names of systemd: memory in bytes, CPUQuota in cores.

    A control group has the limits of all above it. Engines raise a soft limit to the hard one.
    """
    hard = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in ("AS", "FSIZE", "NPROC", "NOFILE")
    }
    found = {f"Limit{name}": float(limit) for name, limit in hard.items() if limit != resource.RLIM_INFINITY}
    own = re.search(r"^0::/(.*)$", kernel_text(proc / "self" / "cgroup"), re.MULTILINE)
    group = root / (own[1] if own else "")
    for place in (group, *(one for one in group.parents if one.is_relative_to(root))):
        # `max`, or a number, and of processors the period that it is for
        for name, file in (("MemoryMax", "memory.max"), ("CPUQuota", "cpu.max")):
            if (words := kernel_text(place / file).split()) and words[0].isdigit():
                found[name] = min(found.get(name, math.inf), int(words[0]) / int(words[-1] if words[1:] else 1))
    return found


TIMEOUT = 5.0  # seconds for `dmesg`
_STAMP = re.compile(r"\[ *(\d+\.\d+)\] ?")


def kernel_lines(since: float = 0.0) -> tuple[str, ...]:
    """The kernel's lines since `since` (seconds, monotonic clock); empty if this user may not read them."""
    answer = ask("dmesg", timeout=TIMEOUT)
    return lines_since(answer.out, since) if answer.good else ()


def lines_since(text: str, since: float) -> tuple[str, ...]:
    """The lines of `dmesg`'s output from `since` on, without their timestamps. Lines without one are left out."""
    stamped = ((_STAMP.match(line), line) for line in text.splitlines())
    return tuple(line[stamp.end() :] for stamp, line in stamped if stamp and float(stamp[1]) >= since)
