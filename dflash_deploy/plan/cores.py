"""How several engines share the processor cores of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from dflash_deploy.host import Thread

T = TypeVar("T")


def shares_of_cores(threads: Iterable[Thread], engines: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the threads of each engine; empty if there are fewer threads than engines.

    The threads of a core stay together if each engine can have a core. An engine has cores of one NUMA node if there
    are as many engines as nodes; a node with more cores gets more of them. Fewer engines have whole nodes.
    """
    every = sorted(threads)
    if not engines or len(every) < engines:
        return ()
    cores = _grouped(every, lambda thread: (thread.node, thread.core))
    units = cores if len(cores) >= engines else [[thread] for thread in every]
    nodes = _grouped(units, lambda unit: unit[0].node)
    if engines < len(nodes):
        return tuple(_numbers(unit for node in part for unit in node) for part in _parts(nodes, engines))
    counts = _engines_of_nodes([len(node) for node in nodes], engines)
    return tuple(_numbers(part) for node, count in zip(nodes, counts, strict=True) for part in _parts(node, count))


def _engines_of_nodes(units: Sequence[int], engines: int) -> list[int]:
    """One engine for each node, and each further one where an engine has the most."""
    counts = [1] * len(units)
    while sum(counts) < engines:
        counts[max(range(len(units)), key=lambda node: units[node] / counts[node] * (counts[node] < units[node]))] += 1
    return counts


def _parts(whole: Sequence[T], count: int) -> list[Sequence[T]]:
    """As many parts of almost equal length."""
    return [whole[len(whole) * part // count : len(whole) * (part + 1) // count] for part in range(count)]


def _grouped(ordered: Iterable[T], by: Callable[[T], object]) -> list[list[T]]:
    return [list(group) for _, group in groupby(ordered, by)]


def _numbers(units: Iterable[Sequence[Thread]]) -> tuple[int, ...]:
    return tuple(sorted(thread.number for unit in units for thread in unit))
