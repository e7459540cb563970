"""NVIDIA GPUs as nvidia-smi reports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.host import nvidia_smi

FIELDS = ("index", "name", "compute_cap", "memory.total", "memory.free", "driver_version", "mig.mode.current")
PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory` and `free` are in bytes, `None` where the driver does not say: a GB10 shares its memory with
    the system.

    `compute_capability` is empty where the driver is too old to say it. `mig` tells whether the GPU is cut into
    slices; its memory is that of the whole card all the same. Its name alone tells little: a DGX Spark calls itself
    `NVIDIA GB10` or `NVIDIA JMJWOA-Generic-GPU`, and so do other machines.
    """

    name: str
    compute_capability: str
    memory: int | None
    driver: str
    index: int = 0
    mig: bool = False
    free: int | None = None


@dataclass(frozen=True)
class GpuReading:
    """The GPUs of this machine. `problem` says why there is none, or fewer than there should be, else it is empty."""

    gpus: tuple[Gpu, ...]
    problem: str = ""


def read_gpus(
    program: str | None = None, *, timeout: float = nvidia_smi.TIMEOUT, pci_devices: Path = PCI_DEVICES
) -> GpuReading:
    """Ask nvidia-smi, or `program` in its place.

    A machine without it has no GPU, unless one is on its PCI bus; one whose nvidia-smi fails or hangs has a problem.
    """
    table = nvidia_smi.query("gpu", FIELDS, program=program, timeout=timeout)
    gpus = gpus_of(table.rows)
    if gpus:
        return GpuReading(gpus, table.problem)
    if table.absent:
        seen = on_the_bus(pci_devices)
        missing = f"{seen} NVIDIA GPU on the PCI bus, but {nvidia_smi.NAME} is not installed: the driver is missing"
        return GpuReading((), missing if seen else "")
    return GpuReading((), table.problem or f"{nvidia_smi.NAME} names no GPU")


def gpus_of(rows: Iterable[Mapping[str, str]]) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's rows. An empty cell is no reason to lose one."""
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


def mebibytes(cell: str) -> int | None:
    """Bytes of a cell in MiB."""
    return int(cell) * 2**20 if cell.isdigit() else None


def on_the_bus(devices: Path = PCI_DEVICES) -> int:
    """How many NVIDIA display controllers the PCI bus has, with a driver or without."""
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
