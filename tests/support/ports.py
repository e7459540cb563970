"""Ports for servers of the tests."""

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Ports below those that Linux gives to clients: an engine listens a minute after its port was chosen, and until then
# a connection of another test could take one of those. A machine may be set to give some of these away too.
FIRST, LAST = 20_000, 32_000

GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the first and the last port that Linux gives to clients


def free_port() -> int:
    """A port that nobody listens on now."""
    return free_run(1)


def free_run(count: int) -> int:
    """The first of `count` consecutive ports that nobody listens on now.

    Tests of this machine, also of tiers that run side by side, get one after the other: one that is chosen is free
    until its server listens.
    """
    with (Path(tempfile.gettempdir()) / f"dflash-tests-ports-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        begin = int(file.read() or FIRST + os.getpid() * 37 % (LAST - FIRST))
        lowest, highest = map(int, GIVEN.read_text().split())
        all_given = lowest <= FIRST and highest >= LAST
        for port in itertools.chain(range(begin, LAST - count), range(FIRST, begin)):
            kept = port + count <= lowest or highest < port
            if (kept or all_given) and all(_is_free(one) for one in range(port, port + count)):
                file.truncate(0)
                file.write(str(port + count))
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
