"""The command lines of the system's SSH client, as lists of arguments. Nothing here starts a process.

No argument has a secret: files travel on standard input. Each call makes a connection of its own. A shared one
(ControlMaster) would save about 0.1 s, but its process outlives the command, and if it hangs all calls hang with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dflash_deploy.fleet.file import Fleet, FleetHost

CONNECT_TIMEOUT = 10
"""Seconds for a connection."""

ALIVE_INTERVAL, ALIVE_COUNT = 5, 3
"""After this many questions without an answer, one each interval in seconds, a connection counts as lost."""

OPTIONS: tuple[str, ...] = (
    # never ask: for a password, a passphrase or an unknown key
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    # the host gets nothing of this machine but the command and its input
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "ControlMaster=no",
    "ControlPath=none",
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    f"ServerAliveInterval={ALIVE_INTERVAL}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    # the messages that `problems` reads
    "LogLevel=ERROR",
)
"""They win over the configuration of the user, because `ssh` takes the first value that it finds."""


def ssh_command(fleet: Fleet, host: FleetHost, words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` on a host. `ssh` joins words with blanks, so they are quoted for a shell."""
    config = ["-F", fleet.ssh_config] if fleet.ssh_config else []
    options = [part for option in OPTIONS for part in ("-o", option)]
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    return ["ssh", "-T", *config, *options, *port, *user, "--", host.address, shlex.join(words)]
