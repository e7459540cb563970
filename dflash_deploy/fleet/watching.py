"""Whether all ranks of one engine over several hosts run together; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["together", "stopped", "broken", "cut"]
"""`together`: all ranks run. `stopped`: the leader has no engine, as after `fleet down`. `broken`: all must start
again. `cut`: a host or its link cannot be reached, so it is unknown whether its rank runs."""


@dataclass(frozen=True)
class RankSeen:
    """What one check of a host found: its engine's phase and identity, `hangs` if it says so itself.

    `unreached` is the error if the host did not answer over SSH, `silent` the addresses of other hosts that did not
    answer it over the link.
    """

    phase: str = ""
    identity: str = ""
    restarts: int = 0
    hangs: bool = False
    silent: tuple[str, ...] = ()
    unreached: str = ""


@dataclass(frozen=True)
class Judgement:
    """What follows from one check of all hosts, and why."""

    verdict: Verdict
    reason: str = ""


def judge_ranks(before: Mapping[str, RankSeen], now: Mapping[str, RankSeen], leader: str) -> Judgement:
    """Return what follows from a check of all hosts by name; `before` is the last one in which all ran together.

    A leader that is stopped was stopped on purpose: one that ends by itself is `exited`.

    A rank that does not run, or runs again without the others, lets the others wait: vLLM notices after 300 s.
    """
    if cut := _cut(now):
        return Judgement("cut", cut)
    if all(seen.phase == "absent" for seen in now.values()):
        return Judgement("stopped", "the engine is stopped on all hosts")
    if now[leader].phase == "absent":
        return Judgement("stopped", f"{leader}: the engine is stopped, though not on all hosts")
    broken = _broken(before, now)
    return Judgement("broken", broken) if broken else Judgement("together")


def _cut(now: Mapping[str, RankSeen]) -> str:
    """Which host or link cannot be reached; empty if all can."""
    unreached = next((seen.unreached for seen in now.values() if seen.unreached), "")
    silent = (f"{name}: {seen.silent[0]} does not answer over the link" for name, seen in now.items() if seen.silent)
    return unreached or next(silent, "")


def _broken(before: Mapping[str, RankSeen], now: Mapping[str, RankSeen]) -> str:
    """Which rank does not compute with the others, and why; empty if all do."""
    for name, seen in now.items():
        if seen.phase != "running":
            return f"{name}: its rank is {seen.phase}"
        if seen.hangs:
            return f"{name}: requests wait, and the engine computes nothing"
    again = [name for name in now if _started_again(before.get(name), now[name])]
    return f"{again[0]}: its rank started again without the others" if again and len(again) < len(now) else ""


def _started_again(before: RankSeen | None, now: RankSeen) -> bool:
    return before is not None and (before.identity, before.restarts) != (now.identity, now.restarts)
