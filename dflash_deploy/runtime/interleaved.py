"""The logs of several processes as one, with the name of its process before each line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dflash_deploy.runtime.protocol import LogPage


def interleaved(readers: Mapping[str, Callable[[str], LogPage]], cursor: str = "") -> LogPage:
    """Return the lines of all logs after `cursor`, which holds a cursor for each."""
    after = dict(part.split("=", 1) for part in cursor.split("|") if part)
    lines: list[str] = []
    for name, read in readers.items():
        page = read(after.get(name, ""))
        after[name] = page.cursor
        lines += (f"{name} | {line}" for line in page.lines)
    return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))
