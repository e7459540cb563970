"""The result of one check, and the functions that all checks share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.plan.memory import GIB

Status = Literal["ok", "warning", "no", "skipped"]


@dataclass(frozen=True)
class Check:
    """The result of one check: `saw` says what was found, with values; `fix` says what to do if it is not ok.

    Status `no` means that `up` would fail. `warning` means that `up` may fail, or that the check cannot decide.
    `skipped` means that there was nothing to check. `seconds` is the duration of the check.
    """

    name: str
    status: Status
    saw: str
    fix: str = ""
    seconds: float = 0.0


def gib(size: float) -> str:
    """Bytes as text in GiB, such as `1.5 GiB`."""
    return f"{size / GIB:.1f} GiB"


def at_least(seen: str, wanted: str) -> bool:
    """Whether version `seen` is `wanted` or newer. Build names after the numbers are ignored."""
    return _figures(seen) >= _figures(wanted)


def _figures(version: str) -> tuple[int, ...]:
    leading = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, leading[1].split("."))) if leading else ()
