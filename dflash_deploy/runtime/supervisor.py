"""`python -m dflash_deploy.runtime.supervisor STATE_DIRECTORY CONFIG ADDRESS [COMMAND]`: runs one native process.

Without COMMAND that is the engine. It writes its own PID to run.json, the redacted output to the log, and the exit code
to exit.json, all with mode 0600. It forwards SIGTERM. CONFIG is a fingerprint of the settings, ADDRESS their HOST:PORT.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.intake.documents import EngineEnd, RunState
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.runtime.process import ProcessId
from dflash_deploy.runtime.supervised import EXIT_FILE, RUN_FILE, log_name
from dflash_deploy.serve.secrets import read_secrets

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def supervise(state: Path, command: list[str]) -> EngineEnd:
    """Run `command` until it ends, and write its redacted output to the log."""
    redact = Redactor(map(Secret, read_secrets(os.environ).values()))
    log = os.open(state / log_name(state), os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    # unbuffered: a write that fails on a full disk would be repeated with the next line
    with io.FileIO(log, "w") as file:
        engine = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # without its supervisor, no command could find the engine
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
        )

        asked = False

        def pass_on(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            asked = True
            engine.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        assert engine.stdout is not None  # noqa: S101 - because of stdout=PIPE
        for line in engine.stdout:
            # a full disk loses the log but must not end a working engine
            with contextlib.suppress(OSError):
                file.write(redact(line).encode())
        return EngineEnd(exit_code=engine.wait(), asked=asked)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Supervise the command, or `dflash_deploy.serve` without one, and save how it ended."""
    state, config, address, *command = Path(sys.argv[1]), *sys.argv[2:]
    me = ProcessId.of(os.getpid())
    assert me is not None  # noqa: S101 - this process runs
    run = RunState(pid=me.pid, started=me.started, config=config, address=address)
    write_atomically(state / RUN_FILE, run.model_dump_json(), mode=PRIVATE)
    end = supervise(state, command or [sys.executable, "-u", "-m", "dflash_deploy.serve"])
    write_atomically(state / EXIT_FILE, end.model_dump_json(), mode=PRIVATE)


if __name__ == "__main__":
    main()
