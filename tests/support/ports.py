"""Ports for servers of the tests."""

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_run(count: int) -> int:
    """The first of `count` consecutive ports that nobody listens on now.

    They are below those that Linux gives to clients, or a connection of another test takes one of them.
    """
    first, last = 20_000, 32_000
    begin = first + os.getpid() * 37 % (last - first)
    for port in itertools.chain(range(begin, last, count), range(first, begin, count)):
        if all(_is_free(one) for one in range(port, port + count)):
            return port
    raise AssertionError(f"no {count} consecutive ports are free")


@contextmanager
def http_port() -> Iterator[int]:
    """Port 80, which an ACME authority asks: for one test at a time, also of tiers that run side by side."""
    with (Path(tempfile.gettempdir()) / "dflash-tests-port-80.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield 80


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
