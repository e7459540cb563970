"""Durations as options take them, such as `30m`, `2h` or `1d`."""

from __future__ import annotations

import re

from dflash_deploy.errors import BadInput

DAY = 86_400
"""Seconds."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


def seconds_of(option: str, written: str, *, most: int) -> int:
    """Seconds of a duration from 1 s to `most` seconds, a number of days. Raises BadInput."""
    match = _DURATION.fullmatch(written.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= most:
        raise BadInput(
            f"`{option} {written[:40]}` is not valid (a duration from 1s to {most // DAY}d)",
            hint=f"such as {option} 30m, {option} 2h or {option} 1d",
        )
    return seconds
