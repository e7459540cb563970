"""What one check yields, and the words that all of them use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "no", "skipped"]


@dataclass(frozen=True)
class Check:
    """One answer: what was seen, in a sentence with figures, and what to do where it is not ok.

    `no` means that `up` would fail; `warning`, that it may go wrong or that this could not be told; `skipped`, that
    there was nothing to look at. `seconds` is how long the look took.
    """

    name: str
    status: Status
    saw: str
    fix: str = ""
    seconds: float = 0.0


def gib(size: float) -> str:
    """Bytes in GiB, for people."""
    return f"{size / 2**30:.1f} GiB"


def at_least(seen: str, wanted: str) -> bool:
    """Whether a version is not below another; build names behind the figures do not count."""
    return _figures(seen) >= _figures(wanted)


def _figures(version: str) -> tuple[int, ...]:
    leading = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, leading[1].split("."))) if leading else ()
