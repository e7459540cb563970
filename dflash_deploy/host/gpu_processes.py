"""The processes that use GPU memory, and their containers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy.host import nvidia_smi
from dflash_deploy.host.containers import container_names
from dflash_deploy.host.gpu import mebibytes

FIELDS = ("pid", "used_memory", "process_name")

_CONTAINER = re.compile(r"(?:docker|containerd|libpod|cri-containerd)[-/]([0-9a-f]{64})")
"""The id of a container in /proc/PID/cgroup: `/docker/ID` with the driver cgroupfs, `docker-ID.scope` with systemd."""


@dataclass(frozen=True)
class GpuProcess:
    """A process with a GPU context. `memory` is in bytes, `None` if nvidia-smi does not report it.

    `container` is the name of its container, empty if it runs in none.
    """

    pid: int
    name: str
    memory: int | None
    container: str = ""


def gpu_processes(program: str | None = None, *, proc: Path = Path("/proc")) -> tuple[GpuProcess, ...]:
    """The processes that nvidia-smi lists, each with its container if it has one."""
    rows = nvidia_smi.query("compute-apps", FIELDS, program=program).rows
    listed = [
        GpuProcess(int(row["pid"]), row["process_name"], mebibytes(row["used_memory"]))
        for row in rows
        if row["pid"].isdigit()
    ]
    identities = {one.pid: container_of(one.pid, proc=proc) for one in listed}
    names = container_names(identity for identity in identities.values() if identity)
    return tuple(_placed(one, identities[one.pid], names) for one in listed)


def container_of(pid: int, *, proc: Path = Path("/proc")) -> str:
    """The full id of the container that a process runs in; empty if it runs in none."""
    try:
        found = _CONTAINER.search((proc / str(pid) / "cgroup").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def _placed(process: GpuProcess, identity: str, names: dict[str, str]) -> GpuProcess:
    return replace(process, container=names.get(identity, identity[:12]))
