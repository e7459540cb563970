"""A recording rule and a group of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recording:
    """One recording rule. `engine` is the prefix of the metric names that it reads; empty: it is for all engines."""

    record: str
    expr: str
    unit: str
    says: str
    engine: str = ""


@dataclass(frozen=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after the other."""

    name: str
    rules: tuple[Recording, ...]
