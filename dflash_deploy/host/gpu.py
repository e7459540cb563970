"""The GPUs and memory of this machine, and the processes that use them.

GPUs and the processes that use their memory are read with nvidia-smi, in old and new versions; a process is shown with
its container. Memory is as the kernel reports it.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_deploy.host.ask import CommandOutput, ask, container_names

NAME = "nvidia-smi"
# The path of nvidia-smi under WSL. One that a distribution installed, found first on the PATH, sees no GPU there.
WSL = Path("/usr/lib/wsl/lib/nvidia-smi")

# Seconds for nvidia-smi. It initialises the driver, which takes a few seconds; a hung driver never responds.
TIMEOUT = 20.0

_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field to query')
# nvidia-smi 610 and newer call driver_version deprecated; CUDA 14 removes it.
_SUCCESSORS = {"driver_version": "kmd_version", "clocks_throttle_reasons.active": "clocks_event_reasons.active"}


@dataclass(frozen=True)
class Table:
    """The output of nvidia-smi: for each line a mapping from field to cell.

    `problem` says why some or all lines are missing. `absent` means that nvidia-smi is not installed.
    """

    rows: tuple[Mapping[str, str], ...] = ()
    problem: str = ""
    absent: bool = False


def programs() -> tuple[str, ...]:
    """The nvidia-smi programs of this machine, in the order in which to try them."""
    found = shutil.which(NAME)
    places = [found] if found else []
    if os.access(WSL, os.X_OK) and found != str(WSL):
        places.append(str(WSL))
    return tuple(places)


def query(kind: str, fields: tuple[str, ...], *, program: str | None = None, timeout: float = TIMEOUT) -> Table:
    """The rows of `--query-KIND=FIELDS`, from the first nvidia-smi that responds.

    A field that this nvidia-smi does not know is not queried, and its cell is empty.
    """
    table = Table(absent=True, problem=f"{NAME} is not installed")
    for place in (program,) if program else programs():
        table = _query(place, kind, fields, timeout)
        if table.rows or not table.problem:
            break
    return table


def listing(program: str | None = None, *, timeout: float = TIMEOUT) -> str:
    """The output of `nvidia-smi -L`: GPUs and their MIG slices. Empty if it fails."""
    answers = (ask(place, "-L", timeout=timeout) for place in ((program,) if program else programs()))
    return next((answer.out for answer in answers if answer.good), "")


def _query(program: str, kind: str, fields: tuple[str, ...], timeout: float) -> Table:
    asked = list(fields)
    while True:
        answer = ask(program, f"--query-{kind}={','.join(asked)}", "--format=csv,noheader,nounits", timeout=timeout)
        unknown = _UNKNOWN_FIELD.search(answer.out + answer.err)
        if unknown is None or unknown[1] not in asked or len(asked) == 1:
            break
        place = asked.index(unknown[1])
        asked[place : place + 1] = [_SUCCESSORS[unknown[1]]] if unknown[1] in _SUCCESSORS else []
    rows = tuple(parse(answer.out, tuple(asked), fields))
    return Table(rows, "" if answer.good else _problem(answer, rows, timeout), absent=answer.absent)


def parse(text: str, asked: tuple[str, ...], fields: tuple[str, ...] = ()) -> Iterator[Mapping[str, str]]:
    """The lines with exactly one cell per queried field; other lines are skipped.

    Cells such as `[N/A]`, `[Not Supported]` and `[Insufficient Permissions]` are empty.
    """
    originals = {new: old for old, new in _SUCCESSORS.items()}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(asked):
            continue
        cells = {originals.get(name, name): _cell(cell) for name, cell in zip(asked, row, strict=True)}
        yield {name: cells.get(name, "") for name in fields or asked}


def _cell(text: str) -> str:
    text = text.strip()
    return "" if text.startswith("[") or text == "N/A" else text


def _problem(answer: CommandOutput, rows: tuple[Mapping[str, str], ...], timeout: float) -> str:
    """Why nvidia-smi failed, in its own words if it printed any."""
    if answer.late:
        return f"{NAME} did not respond within {timeout:g} s: the driver hangs"
    if answer.code is None:
        return answer.problem
    said = [line for line in (answer.out + answer.err).splitlines()[len(rows) :] if line.strip()]
    return f"{NAME} fails: {said[0] if said else f'it exited with code {answer.code}'}"


FIELDS = ("index", "name", "compute_cap", "memory.total", "memory.free", "driver_version", "mig.mode.current")
# What slows a GPU down or makes it unusable, for which `nvidia-smi --help-query-gpu` of 610.43 is the source.
CONDITION = (
    *("pcie.link.width.current", "pcie.link.width.max", "pcie.link.gen.current", "pcie.link.gen.max"),
    *("power.limit", "power.default_limit", "power.draw", "temperature.gpu", "utilization.gpu"),
    *("clocks.current.sm", "clocks.max.sm", "clocks_throttle_reasons.active", "compute_mode", "gpu_recovery_action"),
    *("ecc.errors.uncorrected.volatile.total", "retired_pages.pending", "remapped_rows.pending"),
)
PCI_DEVICES = Path("/sys/bus/pci/devices")

# The variables that name an engine's GPUs, by the numbers of nvidia-smi.
VISIBLE, IN_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

# What nvidia-smi and the driver say of a GPU that they cannot reach; 15 is the exit code for it.
_LOST = r"(?i)\blost\b|fallen off|requires reset|device handle|became inaccessible|exited with code 15"
_KERNEL_SAYS = "`sudo dmesg | grep -i nvrm` shows the reason"
_CPU = "or run without a GPU: `init --profile cpu`"
# What to do about the problem of a reading, by words of it.
_ADVICE = {
    "version mismatch": "reboot: the driver was updated, but the old one is still loaded",
    "hangs": f"{_KERNEL_SAYS}; a hung driver needs a reboot",
    _LOST: f"{_KERNEL_SAYS}; reboot, or until then set {VISIBLE} to GPUs that respond",
    "No devices were found": f"the driver runs and finds no GPU: {_KERNEL_SAYS}, such as missing power cables, or a "
    "GPU that needs the open kernel modules, as Blackwell does",
    "communicate with the NVIDIA driver": "load the driver's module, which a new kernel may lack: `dkms status`, "
    "`sudo modprobe nvidia`; with Secure Boot it must be signed: `mokutil --sb-state`",
    "not installed|^$": f"install the NVIDIA driver and reboot, {_CPU}",
}
_OTHER_ADVICE = f"run `{NAME}`; {_KERNEL_SAYS}; {_CPU}"

# The lines of `nvidia-smi -L`: a GPU, and a slice of it with the GB of its memory in its name (NVIDIA MIG User Guide,
# "MIG Device Names"; tests/support/recorded/nvidia-smi).
_LISTED = re.compile(r"^GPU (\d+):|^\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory` and `free` are in bytes, `None` if the driver does not report them: a GB10 shares its memory
    with the system.

    `compute_capability` is empty if the driver is too old to report it. `mig` is true if the GPU is split into MIG
    `slices`; `memory` is still that of the whole card. A slice has a `uuid`, and the memory of its name, which is up to
    3 % more than it has. The name does not identify a machine: a DGX Spark reports
    `NVIDIA GB10` or `NVIDIA JMJWOA-Generic-GPU`, and so do other machines. `condition` are the cells of CONDITION.
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
    condition: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class GpuReading:
    """The GPUs of this machine. `problem` says why some or all are missing; otherwise it is empty."""

    gpus: tuple[Gpu, ...]
    problem: str = ""


def read_gpus(program: str | None = None, *, timeout: float = TIMEOUT, pci_devices: Path = PCI_DEVICES) -> GpuReading:
    """The GPUs that nvidia-smi, or `program` instead, reports.

    A machine without nvidia-smi has no GPU, unless the PCI bus has one. An nvidia-smi that fails or hangs is a problem.
    """
    table = query("gpu", (*FIELDS, *CONDITION), program=program, timeout=timeout)
    if not (table.rows or table.absent or "hangs" in table.problem):
        # one that refuses a field in other words still lists its GPUs
        table = query("gpu", FIELDS, program=program, timeout=timeout)
    gpus = gpus_of(row for row in table.rows if row["name"])
    if not table.problem and (unread := [row["index"] for row in table.rows if not row["name"]]):
        table = replace(table, problem=f"{NAME} does not reach GPU {', '.join(unread)}, which is lost or needs a reset")
    if any(gpu.mig for gpu in gpus):
        gpus = with_slices(gpus, listing(program, timeout=timeout))
    if gpus:
        return GpuReading(gpus, table.problem)
    if table.absent:
        seen = on_the_bus(pci_devices)
        missing = f"{seen} NVIDIA GPU on the PCI bus, but {NAME} is not installed: the driver is missing"
        return GpuReading((), missing if seen else "")
    return GpuReading((), table.problem or f"{NAME} lists no GPU")


def is_lost(problem: str) -> bool:
    """Whether the problem of a reading is a GPU that was lost, and not only a warning beside the rows."""
    return re.search(_LOST, problem) is not None


def driver_advice(problem: str) -> str:
    """What to do about the problem of a reading."""
    return next((advice for words, advice in _ADVICE.items() if re.search(words, problem)), _OTHER_ADVICE)


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
            condition={name: row[name] for name in CONDITION if row.get(name)},
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
        kernel_text(device / "vendor").startswith("0x10de") and kernel_text(device / "class").startswith("0x03")
        for device in _listed(devices)
    )


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def kernel_text(file: Path) -> str:
    """The text of a file of the kernel, such as one in /proc; empty if it is missing or unreadable."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


PROCESS_FIELDS = ("pid", "used_memory", "process_name")

# The id of a container in /proc/PID/cgroup: `/docker/ID` with the driver cgroupfs, `docker-ID.scope` with systemd.
_CONTAINER = re.compile(r"(?:docker|containerd|libpod|cri-containerd)[-/]([0-9a-f]{64})")


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
    rows = query("compute-apps", PROCESS_FIELDS, program=program).rows
    listed = [
        GpuProcess(int(row["pid"]), row["process_name"], mebibytes(row["used_memory"]))
        for row in rows
        if row["pid"].isdigit()
    ]
    identities = {one.pid: container_of(one.pid, proc=proc) for one in listed}
    names = container_names(identity for identity in identities.values() if identity)
    places = ((one, identities[one.pid]) for one in listed)
    return tuple(replace(one, container=names.get(identity, identity[:12])) for one, identity in places)


def container_of(pid: int, *, proc: Path = Path("/proc")) -> str:
    """The full id of the container that a process runs in; empty if it runs in none."""
    found = _CONTAINER.search(kernel_text(proc / str(pid) / "cgroup"))
    return found[1] if found else ""


PROC = Path("/proc")
MEMINFO = PROC / "meminfo"


def read_memory(meminfo: Path = MEMINFO) -> dict[str, int]:
    """The lines of /proc/meminfo in bytes. MemAvailable is the memory that a new process can allocate."""
    lines = re.findall(r"^(\w+): +(\d+) kB$", kernel_text(meminfo), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in lines}


def available_memory() -> int | None:
    """Bytes that a new process can allocate now; `None` if the system does not report it."""
    return read_memory().get("MemAvailable")


@dataclass(frozen=True)
class Tenant:
    """A process, or a container with all of its processes, and the bytes of memory that it holds (RSS).

    Pages that processes share are counted for each of them. Memory that CUDA allocates is not included.
    """

    name: str
    memory: int


def tenants(proc: Path = PROC) -> tuple[Tenant, ...]:
    """What holds memory on this machine, the largest first."""
    held: Counter[tuple[str, str]] = Counter()
    for statm in proc.glob("[0-9]*/statm"):
        # a process may end meanwhile
        with suppress(OSError, ValueError, IndexError):
            size = int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            pid, identity = int(statm.parent.name), container_of(int(statm.parent.name), proc=proc)
            held[identity, "" if identity else f"{_program(statm.parent)} (process {pid})"] += size
    names = container_names(identity for identity, _ in held if identity)
    return tuple(
        Tenant(process or f"container {names.get(identity, identity[:12])}", size)
        for (identity, process), size in held.most_common()
    )


# Programs that end a process when memory is short; DGX OS has earlyoom (hasso5703/dgx-spark-qwen38@719c17b).
OOM_DAEMONS = ("earlyoom", "systemd-oomd")


def running_programs(proc: Path = PROC) -> frozenset[str]:
    """The names of the programs that run, as the kernel has them: at most 15 characters."""
    return frozenset(_program(process) for process in proc.glob("[0-9]*"))


def _program(process: Path) -> str:
    return kernel_text(process / "comm").strip()
