"""NVIDIA GPUs as nvidia-smi reports them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy.host import nvidia_smi

FIELDS = ("index", "name", "compute_cap", "memory.total", "memory.free", "driver_version", "mig.mode.current")
PCI_DEVICES = Path("/sys/bus/pci/devices")

VISIBLE = "CUDA_VISIBLE_DEVICES"

_LISTED = re.compile(r"^GPU (\d+):|^\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)", re.MULTILINE)
"""The lines of `nvidia-smi -L`: a GPU, and a slice of it with the GB of its memory in its name (NVIDIA MIG User Guide,
"MIG Device Names"; tests/support/recorded/nvidia-smi)."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory` and `free` are in bytes, `None` if the driver does not report them: a GB10 shares its memory
    with the system.

    `compute_capability` is empty if the driver is too old to report it. `mig` is true if the GPU is split into MIG
    `slices`; `memory` is still that of the whole card. A slice has a `uuid`, and the memory of its name, which is up to
    3 % more than it has. The name does not identify a machine: a DGX Spark reports
    `NVIDIA GB10` or `NVIDIA JMJWOA-Generic-GPU`, and so do other machines.
    """

    name: str
    compute_capability: str
    memory: int | None
    driver: str
    index: int = 0
    mig: bool = False
    free: int | None = None
    uuid: str = ""
    slices: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class GpuReading:
    """The GPUs of this machine. `problem` says why some or all are missing; otherwise it is empty."""

    gpus: tuple[Gpu, ...]
    problem: str = ""


def read_gpus(
    program: str | None = None, *, timeout: float = nvidia_smi.TIMEOUT, pci_devices: Path = PCI_DEVICES
) -> GpuReading:
    """The GPUs that nvidia-smi, or `program` instead, reports.

    A machine without nvidia-smi has no GPU, unless the PCI bus has one. An nvidia-smi that fails or hangs is a problem.
    """
    table = nvidia_smi.query("gpu", FIELDS, program=program, timeout=timeout)
    gpus = gpus_of(table.rows)
    if any(gpu.mig for gpu in gpus):
        gpus = with_slices(gpus, nvidia_smi.listing(program, timeout=timeout))
    if gpus:
        return GpuReading(gpus, table.problem)
    if table.absent:
        seen = on_the_bus(pci_devices)
        missing = f"{seen} NVIDIA GPU on the PCI bus, but {nvidia_smi.NAME} is not installed: the driver is missing"
        return GpuReading((), missing if seen else "")
    return GpuReading((), table.problem or f"{nvidia_smi.NAME} lists no GPU")


def gpus_of(rows: Iterable[Mapping[str, str]]) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's rows. A row with empty cells is kept."""
    return tuple(
        Gpu(
            name=row["name"],
            compute_capability=row["compute_cap"],
            memory=mebibytes(row["memory.total"]),
            driver=row["driver_version"],
            index=int(row["index"]) if row["index"].isdigit() else place,
            mig=row["mig.mode.current"] == "Enabled",
            free=mebibytes(row["memory.free"]),
        )
        for place, row in enumerate(rows)
    )


def with_slices(gpus: Iterable[Gpu], listing: str) -> tuple[Gpu, ...]:
    """The GPUs with their MIG slices, from the output of `nvidia-smi -L`."""
    slices: dict[int, list[Gpu]] = {gpu.index: [] for gpu in gpus}
    cards, index = {gpu.index: gpu for gpu in gpus}, -1
    for number, name, gigabytes, uuid in _LISTED.findall(listing):
        index = int(number) if number else index
        if uuid and index in cards:
            card = cards[index]
            size = int(gigabytes) * 2**30
            cut = replace(card, name=f"{card.name} MIG {name}", memory=size, free=None, mig=False, uuid=uuid)
            slices[index].append(cut)
    return tuple(replace(gpu, slices=tuple(slices[gpu.index])) for gpu in gpus)


def mebibytes(cell: str) -> int | None:
    """Bytes of a cell in MiB; `None` if it is not a number."""
    return int(cell) * 2**20 if cell.isdigit() else None


def on_the_bus(devices: Path = PCI_DEVICES) -> int:
    """The number of NVIDIA display controllers on the PCI bus, with or without a driver."""
    return sum(
        1 for device in _listed(devices) if _says(device / "vendor", "0x10de") and _says(device / "class", "0x03")
    )


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _says(file: Path, start: str) -> bool:
    try:
        return file.read_text(encoding="ascii").startswith(start)
    except (OSError, UnicodeDecodeError):
        return False
