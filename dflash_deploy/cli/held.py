"""Standard input that another program holds open: a line with a token, and the end of what was asked for."""

from __future__ import annotations

import os
import sys
import threading

from dflash_deploy.errors import BadInput
from dflash_deploy.redact import Secret

LONGEST = 200
"""Bytes of a token."""

MOST = 1 << 20
"""Bytes of a document."""


def read_token() -> Secret:
    """Return the token in the first line of standard input. Raises BadInput if there is none."""
    token = sys.stdin.buffer.readline(LONGEST).decode("ascii", "replace").strip()
    if len(token) < 32 or not token.isascii():
        raise BadInput("standard input has no token", hint="`dflash-deploy fleet up` makes one for each transfer")
    return Secret(token)


def read_all() -> bytes:
    """Return standard input to its end. A longer one than MOST is cut, and is not valid then."""
    return sys.stdin.buffer.read(MOST)


def input_ended() -> threading.Event:
    """Return an event that is set when standard input ends: the program that holds it open is gone, or done."""
    ended = threading.Event()

    def drain() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            continue
        ended.set()

    threading.Thread(target=drain, daemon=True).start()
    return ended
