"""The processor threads that this process may use, with their cores and NUMA nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CPUS, NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


@dataclass(frozen=True, order=True)
class Thread:
    """A processor thread, which Linux calls a CPU: its NUMA node, its core, and its own number.

    `core` is the lowest number of the threads of its core.
    """

    node: int
    core: int
    number: int


def threads_here(cpus: Path = CPUS, nodes: Path = NODES) -> tuple[Thread, ...]:
    """The threads that this process may use, by their numbers.

    A thread whose topology cannot be read is a core of its own, in node 0.
    """
    return tuple(threads_of(os.sched_getaffinity(0), cpus, nodes))


def threads_of(allowed: Iterable[int], cpus: Path, nodes: Path) -> Iterator[Thread]:
    """The threads with these numbers. `cpus` and `nodes` are directories of sysfs."""
    node_of = {
        number: int(place.name.removeprefix("node"))
        for place in nodes.glob("node[0-9]*")
        for number in _listed(place / "cpulist")
    }
    for number in sorted(allowed):
        siblings = _listed(cpus / f"cpu{number}" / "topology" / "thread_siblings_list")
        yield Thread(node_of.get(number, 0), min([number, *siblings]), number)


def _listed(file: Path) -> list[int]:
    """The numbers of a list of the kernel, such as `0-3,8`; empty if it cannot be read."""
    try:
        ranges = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",") if part]
        return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]
    except (OSError, ValueError):
        return []
