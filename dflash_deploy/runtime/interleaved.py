"""The logs of several processes as one, with the name of its process before each line."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.runtime.protocol import LogPage, ReadLog


def interleaved(readers: Mapping[str, ReadLog], cursor: str = "", *, tail: int | None = None) -> LogPage:
    """Return the lines of all logs after `cursor`, which holds a cursor for each; of each only the last `tail`.

    An empty name is not written before the lines.
    """
    after = dict(part.split("=", 1) for part in cursor.split("|") if part)
    lines: list[str] = []
    for name, read in readers.items():
        page = read(after.get(name, ""))
        after[name] = page.cursor
        shown = page.lines if tail is None else page.lines[-tail:] if tail else ()
        lines += (f"{name} | {line}" if name else line for line in shown)
    return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))
