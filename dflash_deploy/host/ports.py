"""Whether a TCP port is free to listen on, and how this machine reaches one."""

from __future__ import annotations

import errno
import socket

from dflash_deploy.serve.settings import Settings

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def reached(host: str, port: int) -> str:
    """HOST:PORT at which this machine reaches what listens on a host, which may be all addresses."""
    here = _WILDCARDS.get(host, host)
    return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"


def listener_on(host: str, port: int) -> bool:
    """Whether another process already listens on `host:port`. A port that this user may not bind is reported as free:
    Docker may be allowed to bind it.
    """
    return _refusal(host, port) == errno.EADDRINUSE


NEARBY = 100  # ports after the planned one that are tried


def free_port(host: str, planned: int) -> int:
    """The planned port, or the next one that no program listens on."""
    ports = range(planned, min(planned + NEARBY, 65536))
    return next((port for port in ports if not listener_on(host, port)), planned)


def other_port(host: str, taken: int) -> str:
    """What to do about a port that another process has."""
    other = f"{Settings.dflash_port}={free_port(host, taken)}"
    return f"use another one: `dflash-deploy set {other}`, or find the process: `ss -ltnp`"


def is_address_here(host: str) -> bool:
    """Whether `host` is an address of this machine, so that something can listen there."""
    return _refusal(host, 0) not in {errno.EADDRNOTAVAIL, errno.EINVAL}


def foreign_bind(host: str) -> tuple[str, str] | None:
    """Why the endpoint cannot listen on DFLASH_BIND, and what to do; `None` if it is an address of this machine."""
    if is_address_here(host):
        return None
    return f"{Settings.dflash_bind}=`{host}` is not an address of this machine", "list its addresses with `ip addr`"


def _refusal(host: str, port: int) -> int | None:
    """The system's error number if nothing can listen there; `None` if something can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # as servers do: ignore connections of an earlier listener in TIME_WAIT
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except socket.gaierror:
        # a name without an address
        return errno.EADDRNOTAVAIL
    except OSError as problem:
        # a kernel without IPv6 has no IPv6 addresses; a link-local one without its interface is EINVAL
        return errno.EADDRNOTAVAIL if problem.errno == errno.EAFNOSUPPORT else problem.errno
    return None
