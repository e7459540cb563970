"""What a check says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """What a check saw: whether that is right, what was asked, what came, and what to do if it is wrong.

    `figures` are numbers that others want too, by name: `tokens_per_second` of one stream, `acceptance_length` and
    the same by workload.
    """

    right: bool
    asked: str
    got: str
    hint: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class CheckSkipped(Exception):
    """Raised where a check cannot tell right from wrong here; `reason` says why."""

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(reason)
        self.asked = asked
        self.reason = reason


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: which check, what became of it, how many seconds it took.

    `silent` says that an answer was waited for in vain.
    """

    name: str
    status: CheckStatus
    seconds: float
    asked: str
    got: str
    hint: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    silent: bool = False
