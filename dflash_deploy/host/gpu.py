"""NVIDIA GPUs as nvidia-smi reports them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory` is in bytes, `None` where the driver does not say: a GB10 shares its memory with the system."""

    name: str
    compute_capability: str
    memory: int | None
    driver: str


def read_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine; empty where nvidia-smi is absent, fails or does not answer within 20 s."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer.stdout)


def parse_gpus(csv: str) -> tuple[Gpu, ...]:
    """Read the lines that QUERY prints. Memory may be `[N/A]`, which is no reason to lose the GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in csv.splitlines()]
    return tuple(
        Gpu(name, capability, int(mebibytes) * 2**20 if mebibytes.isdigit() else None, driver)
        for name, capability, mebibytes, driver in (row for row in rows if len(row) == 4)
    )
