"""A question to a host that is asked again before its answer is judged: one lost connection is not a lost host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dflash_deploy.errors import HostUnfit, HostUnreachable

T = TypeVar("T")

TRIES = 3

PAUSE = 2.0
"""Seconds between two tries."""


def ask_again(
    ask: Callable[[], T],
    *,
    enough: Callable[[T], bool] = lambda answer: True,
    tries: int = TRIES,
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first answer that is `enough`, else the last one. Raises the error of the last try.

    Only errors of a host are tried again: one that cannot be reached, or answers something else.
    """
    for _ in range(tries - 1):
        try:
            answer = ask()
        except (HostUnreachable, HostUnfit):
            wait(PAUSE)
            continue
        if enough(answer):
            return answer
        wait(PAUSE)
    return ask()
