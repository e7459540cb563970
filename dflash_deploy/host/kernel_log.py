"""The kernel log: only the kernel knows which process it killed when the machine was out of memory."""

from __future__ import annotations

import re

from dflash_deploy.host.ask import ask

TIMEOUT = 5.0
"""Seconds for `dmesg`."""

_STAMP = re.compile(r"\[ *(\d+\.\d+)\] ?")


def kernel_lines(since: float = 0.0) -> tuple[str, ...]:
    """The kernel's lines since `since` (seconds, monotonic clock); empty if this user may not read them."""
    answer = ask("dmesg", timeout=TIMEOUT)
    return lines_since(answer.out, since) if answer.good else ()


def lines_since(text: str, since: float) -> tuple[str, ...]:
    """The lines of `dmesg`'s output from `since` on, without their timestamps. Lines without one are left out."""
    stamped = ((_STAMP.match(line), line) for line in text.splitlines())
    return tuple(line[stamp.end() :] for stamp, line in stamped if stamp and float(stamp[1]) >= since)
