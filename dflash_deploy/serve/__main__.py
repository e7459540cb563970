"""`python -m dflash_deploy.serve`: start the engine with the settings of the environment.

The process becomes the engine (exec), so signals and the exit code are the engine's own. `--print` prints the argument
list and stops. Settings that cannot work end it with code 3 and one line on standard error.
"""

from __future__ import annotations

import os
import resource
import shlex
import sys
from collections.abc import Mapping
from typing import NoReturn

from dflash_deploy.serve.launch import prepare
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.started import with_start_time

REFUSED = 3  # the exit code for settings that cannot work: that of a failed preflight in dflash_deploy.errors
OPEN_FILES = 65_536  # open files that the engine's process may have, if the system allows as many


def main(argv: list[str]) -> int:
    """Start the engine; returns only if it does not start."""
    try:
        launch = prepare(os.environ)
    except Refused as refusal:
        print(f"dflash: {refusal.message} ({refusal.hint})", file=sys.stderr)
        return REFUSED
    # the list holds no secret: users paste it into bug reports
    print(f"dflash: {launch.title} {shlex.join(launch.arguments)}", flush=True)
    if argv == ["--print"]:
        return 0
    return _become(launch.command, with_start_time(launch.environment))


def _become(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    # each connection is an open file: with the usual soft limit, 1,024 idle connections would close the endpoint
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, OPEN_FILES)), hard))
    os.execve(command[0], command, environment)  # noqa: S606 - without a shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
