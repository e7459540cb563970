"""The load that replicas are planned for, from a text such as `users=200,think=30s,in=1500,out=500,p95_ttft=2s`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from dflash_deploy.document import Documented, Keywords, Seconds
from dflash_deploy.errors import BadInput

EXAMPLE = "users=200,think=30s,in=1500,out=500,p95_ttft=2s"

MOST_USERS = 100_000
MOST_TOKENS = 10_000_000
MOST_SECONDS = 86_400.0
MOST_SPREAD = 2.0
"""Largest values: beyond them a load is more likely a typing error than a plan."""

_COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(k?)")
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|min|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}


@dataclass(frozen=True)
class UserLoad(Documented):
    """Users who each send a request, read its answer, and send the next one."""

    users: Annotated[int, Keywords(minimum=1)]
    """Users; each sends its next request after reading an answer."""
    think_s: Seconds
    """Mean time between an answer and the next request of a user, in seconds."""
    prompt_tokens: Annotated[int, Keywords(minimum=1)]
    """Mean tokens of a prompt."""
    answer_tokens: Annotated[int, Keywords(minimum=1)]
    """Mean tokens of an answer."""
    spread: Annotated[float, Keywords(minimum=0)]
    """Coefficient of variation of both; 0 if all requests are equal, 1 is exponential."""
    p95_ttft_s: Seconds | None
    """Goal: 95th percentile of the time to the first token, in seconds; null if there is none."""
    p95_answer_s: Seconds | None
    """Goal: 95th percentile of the time to the last token, in seconds; null if there is none."""


def parse_load(written: str) -> UserLoad:
    """The load in a text. Raises BadInput with the part that is not valid."""
    given = _pairs(written)
    for name in ("users", "in", "out"):
        if name not in given:
            raise BadInput(f"the load has no `{name}`", hint=f"such as {EXAMPLE}")
    if not {"p95_ttft", "p95_answer"} & set(given):
        raise BadInput(
            "the load has no goal: `p95_ttft` or `p95_answer`",
            hint="p95_ttft=2s: 95 of 100 requests have their first token after 2 s at most; p95_answer: their last one",
        )
    return UserLoad(
        users=int(given["users"]),
        think_s=given.get("think", 0.0),
        prompt_tokens=int(given["in"]),
        answer_tokens=int(given["out"]),
        spread=given.get("spread", 1.0),
        p95_ttft_s=given.get("p95_ttft"),
        p95_answer_s=given.get("p95_answer"),
    )


def _pairs(written: str) -> Mapping[str, float]:
    """The values by name, each within its range."""
    found: dict[str, float] = {}
    for part in written.split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not equals:
            raise BadInput(f"`{part.strip()}` is not valid in a load (NAME=VALUE)", hint=f"such as {EXAMPLE}")
        if name not in _KINDS:
            near = difflib.get_close_matches(name, _KINDS, 1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise BadInput(f"`{name}` is not a part of a load", hint=f"{hint}Valid parts: {', '.join(_KINDS)}")
        if name in found:
            raise BadInput(f"`{name}` is in the load more than once", hint="write it once")
        found[name] = _KINDS[name](name, value)
    return found


def _users(name: str, value: str) -> float:
    return _whole(name, value, MOST_USERS)


def _tokens(name: str, value: str) -> float:
    return _whole(name, value, MOST_TOKENS)


def _whole(name: str, value: str, most: int) -> float:
    """A whole number from 1 on, such as `200` or `2k`."""
    match = _COUNT.fullmatch(value)
    number = float(match[1]) * (1000 if match[2] else 1) if match else 0.0
    if not 1 <= number <= most or number != round(number):
        raise BadInput(
            f"`{name}={value}` is not valid (a whole number from 1 to {most})", hint=f"such as {name}=200 or {name}=2k"
        )
    return number


def _think(name: str, value: str) -> float:
    return _duration(name, value, least=0.0)


def _goal(name: str, value: str) -> float:
    return _duration(name, value, least=0.001)


def _duration(name: str, value: str, least: float) -> float:
    """Seconds of a duration with a unit; 0 needs none."""
    match = _DURATION.fullmatch(value)
    number = float(match[1]) if match else math.nan
    if match and not match[2] and number:
        raise BadInput(f"`{name}={value}` has no unit", hint=f"write {name}={value}s, {value}ms or {value}min")
    seconds = number * _SECONDS[match[2] or "s"] if match else math.nan
    if not least <= seconds <= MOST_SECONDS:
        raise BadInput(
            f"`{name}={value}` is not valid (a duration from {least:g} s to {MOST_SECONDS:g} s)",
            hint=f"such as {name}=2s, {name}=500ms or {name}=1min",
        )
    return seconds


def _spread(name: str, value: str) -> float:
    match = _COUNT.fullmatch(value)
    if match is None or match[2] or float(match[1]) > MOST_SPREAD:
        raise BadInput(
            f"`{name}={value}` is not valid (a number from 0 to {MOST_SPREAD:g})",
            hint="spread=0: all requests have the same length; spread=1: many short ones and a few long ones",
        )
    return float(match[1])


_KINDS: Mapping[str, Callable[[str, str], float]] = {
    "users": _users,
    "think": _think,
    "in": _tokens,
    "out": _tokens,
    "spread": _spread,
    "p95_ttft": _goal,
    "p95_answer": _goal,
}
"""What each part of a load is."""
