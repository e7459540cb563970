"""Whether the replicas of a deployment are the same: image, settings, and what the model answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_deploy.checks.check import CheckResult
from dflash_deploy.checks.lossless import PlainToken, difference

SHOWN = 80
"""Characters of a value that is shown."""


@dataclass(frozen=True)
class ReplicaAnswer:
    """A greedy answer of one replica: its tokens, with the most likely ones at each place."""

    tokens: Sequence[PlainToken]

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(token.token for token in self.tokens)


def same_values(name: str, what: str, values: Mapping[str, str], hint: str) -> CheckResult:
    """The check `name`: each replica has the value that most of them have. Names those that have another."""
    asked = f"{what} of each replica"
    usual, others = _usual(values)
    if not others:
        return CheckResult(name, "passed", 0.0, asked, f"{_short(usual)} on all {len(values)}")
    listed = ", ".join(f"{replica} {_short(values[replica])}" for replica in others)
    rest = "" if len(others) == len(values) else f"; the others {_short(usual)}"
    return CheckResult(name, "failed", 0.0, asked, f"{listed}{rest}", hint)


def _usual(values: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The most common value, and the replicas that have another; all of them if no value is the most common one."""
    counted = Counter(values.values()).most_common(2)
    value, times = counted[0]
    tied = len(counted) > 1 and counted[1][1] == times
    return value, tuple(replica for replica, own in values.items() if tied or own != value)


def same_answers(answers: Mapping[str, ReplicaAnswer], hint: str) -> CheckResult:
    """The check `same answer`: the greedy answers differ in ties only. Compares with the most common one."""
    asked = "the greedy answer of each replica to the same question"
    usual, _ = _usual({replica: answer.text for replica, answer in answers.items()})
    like = next(replica for replica, answer in answers.items() if answer.text == usual)
    found = {
        replica: what
        for replica, answer in answers.items()
        if (what := difference([token.token for token in answer.tokens], answers[like].tokens))
    }
    if not found:
        return CheckResult("same answer", "passed", 0.0, asked, f"{len(usual)} characters from all {len(answers)}")
    listed = "; ".join(f"{replica}: {what.replace('without drafts', f'at {like}')}" for replica, what in found.items())
    return CheckResult("same answer", "failed", 0.0, asked, listed, hint)


def _short(value: str) -> str:
    """A value as it is shown: the end of an image's name is its digest."""
    return value if len(value) <= SHOWN else f"…{value[-SHOWN:]}"


DIFFERS_BELOW = 0.8
"""Share of the other engines' acceptance length below which an engine differs."""


RESTART = "`dflash-deploy restart` starts all of them again"


def compared(lengths: Mapping[str, float], fix: str = RESTART) -> CheckResult:
    """The check `alike`: names engines whose acceptance length is below that of the others. `fix` ends the hint."""
    worst = {
        name: length
        for name, length in lengths.items()
        if length < DIFFERS_BELOW * median(other for engine, other in lengths.items() if engine != name)
    }
    got = ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
    hint = f"{' and '.join(worst)} may run other weights or settings: {fix}"
    asked = "acceptance length of each engine"
    return CheckResult("alike", "failed" if worst else "passed", 0.0, asked, got, hint if worst else "")
