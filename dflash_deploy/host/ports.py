"""Whether a TCP port is free."""

from __future__ import annotations

import errno
import socket


def listener_on(host: str, port: int) -> bool:
    """Whether something already listens on `host:port`. A port that this user may not bind counts as free here:
    the container engine may bind it for us.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # as servers do: connections of an earlier listener in TIME_WAIT do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            return problem.errno == errno.EADDRINUSE
    return False
