"""The outcome of a check, and its line in the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check: whether it is right, what was asked, what came, and a hint if it is wrong.

    `figures` are numbers for the report, by name: `tokens_per_second` at concurrency 1, `acceptance_length` and
    the same by workload.
    """

    right: bool
    asked: str
    got: str
    hint: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class CheckSkipped(Exception):
    """Raised when a check cannot decide right from wrong; `reason` says why."""

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(reason)
        self.asked = asked
        self.reason = reason


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: the check's name, status, seconds and outcome.

    `silent`: the check timed out without an answer.
    """

    name: str
    status: CheckStatus
    seconds: float
    asked: str
    got: str
    hint: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    silent: bool = False
