"""Failures of a host, named from the exit code and the messages of `ssh` and of the scripts; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dflash_deploy import __version__
from dflash_deploy.errors import (
    DeployError,
    HostNotTrusted,
    HostUnfit,
    HostUnprepared,
    HostUnreachable,
    PreflightRefused,
)
from dflash_deploy.fleet import scripts
from dflash_deploy.fleet.file import FILE, FleetHost
from dflash_deploy.intake.invalid import printable

SSH_FAILED = 255
"""The exit code of `ssh` for its own failures."""

SAME_COMMAND = "run the same command again: it continues where it stopped"

FULL = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC", re.IGNORECASE)

_NO_INDEX = re.compile(r"No matching distribution found|Could not find a version that satisfies|No solution found")

_LOST = re.compile(r"Timeout, server .* not responding|Connection reset|Broken pipe|closed by remote host")


def last_line(text: str) -> str:
    """The last line of a text from a host that says something, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else "no message"


def reached_by(host: FleetHost) -> str:
    """A host as `ssh` and `ssh-keyscan` take it on a command line."""
    return f"{f'-p {host.port} ' if host.port else ''}{f'{host.user}@' if host.user else ''}{host.address}"


def connection_failure(host: FleetHost, err: str) -> DeployError:
    """The error for a failure of `ssh` itself, from what it printed."""
    name, way = host.name, reached_by(host)
    if "HOST IDENTIFICATION HAS CHANGED" in err:
        return HostNotTrusted(
            f"{name}: the SSH key of {host.address} has changed",
            hint=f"if it was reinstalled, remove the old key with `ssh-keygen -R {host.address}`, then run `ssh {way}` "
            "and compare the new one; otherwise another machine answers in its place",
        )
    if "Host key verification failed" in err or "host key is known" in err:
        return HostNotTrusted(
            f"{name}: the SSH key of {host.address} is not known on this machine",
            hint=f"run `ssh {way}` once, and compare the key that it shows with the one on the host",
        )
    if "Permission denied" in err or "Too many authentication failures" in err:
        return HostNotTrusted(
            f"{name}: {host.address} rejects the login: {last_line(err)}",
            hint=f"copy your public key with `ssh-copy-id {way}`, or load it with `ssh-add`",
        )
    if "Could not resolve hostname" in err:
        return HostUnreachable(
            f"{name}: the host name {host.address} cannot be resolved", hint=f"correct its address in {FILE}"
        )
    if _LOST.search(err):
        return HostUnreachable(
            f"{name}: the connection to {host.address} was lost: {last_line(err)}",
            hint=f"check the cable and the network; {SAME_COMMAND}",
        )
    return HostUnreachable(
        f"{name}: {host.address} cannot be reached over SSH: {last_line(err)}",
        hint=f"check that it runs, and that `ssh {way}` works; {SAME_COMMAND}",
    )


def late(host: FleetHost, seconds: float) -> DeployError:
    """The error for a host that took too long."""
    return HostUnreachable(
        f"{host.name}: no answer within {seconds:g} s", hint=f"check its load with `ssh {reached_by(host)} uptime`"
    )


def no_client() -> DeployError:
    """The error for a machine without an SSH client."""
    return PreflightRefused("`ssh` is not installed on this machine", hint="apt-get install openssh-client")


def full_disk(host: FleetHost) -> DeployError:
    """The error for a host whose disk is full."""
    return HostUnfit(
        f"{host.name}: its disk is full",
        hint=f"free space there (`ssh {reached_by(host)} df -h`); {SAME_COMMAND}",
    )


def script_failure(host: FleetHost, code: int, err: str) -> DeployError:
    """The error for a script, or dflash-deploy on the host, that ended with `code` without a document."""
    if FULL.search(err):
        return full_disk(host)
    named = _OF_SCRIPTS.get(code)
    if named is not None:
        message, hint = named(host, err)
        kind = HostUnprepared if code == scripts.ABSENT and not host.program else HostUnfit
        return kind(f"{host.name}: {message}", hint=hint)
    return HostUnfit(
        f"{host.name}: a command ended with exit code {code}: {last_line(err)}",
        hint=f"check that `ssh {reached_by(host)} true` prints nothing",
    )


def _absent(host: FleetHost, err: str) -> tuple[str, str]:
    if host.program:
        return f"{host.program} cannot be executed", f"install dflash-deploy {__version__} there, or correct `program`"
    return f"dflash-deploy {__version__} is not installed there", "`dflash-deploy fleet up` installs it"


def _other(host: FleetHost, err: str) -> tuple[str, str]:
    has = last_line(err).removeprefix("other version: ").removeprefix("dflash-deploy ")
    return (
        f"it has dflash-deploy {has}, this machine has {__version__}",
        f"install {__version__} there, or remove `program` from {FILE}: then `fleet up` installs it",
    )


def _no_pip(host: FleetHost, err: str) -> tuple[str, str]:
    if _NO_INDEX.search(err):
        return (
            f"its package index does not have all packages: {last_line(err)}",
            f"name a wheel of dflash-deploy as `install.wheel` in {FILE} (`make dist` builds it); its dependencies "
            "come from the index of the host",
        )
    return f"dflash-deploy cannot be installed there: {last_line(err)}", SAME_COMMAND


_OF_SCRIPTS: Mapping[int, Callable[[FleetHost, str], tuple[str, str]]] = {
    scripts.ABSENT: _absent,
    scripts.OTHER_VERSION: _other,
    scripts.DAMAGED: lambda host, err: ("a file arrived incomplete", SAME_COMMAND),
    scripts.NO_TOOL: lambda host, err: ("flock or sha256sum is missing", "apt-get install util-linux coreutils"),
    scripts.NO_DIRECTORY: lambda host, err: (
        f"a file cannot be written: {last_line(err)}",
        f"check the owner and the space of `directory` in {FILE}",
    ),
    scripts.NO_PYTHON: lambda host, err: (
        f"it has no Python {scripts.OLDEST_PYTHON} or newer with venv: {last_line(err)}",
        "install uv, or: apt-get install python3-venv",
    ),
    scripts.NO_PIP: _no_pip,
}
