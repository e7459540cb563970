"""`python -m dflash_deploy.runtime.supervisor STATE_DIRECTORY CONFIG ADDRESS`: runs the engine of a native deployment.

It writes down itself in run.json, the engine's output, secrets redacted, in engine.log, and how it ended in exit.json,
all of mode 0600; SIGTERM is passed on. CONFIG is a fingerprint of the settings, ADDRESS the HOST:PORT they name.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.runtime.process import ProcessId
from dflash_deploy.serve.secrets import read_secrets

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


@dataclass(frozen=True)
class EngineEnd:
    """How the engine ended, and whether it was asked to. A negative exit code is the signal that ended it.

    An engine whose core has died may end with 0, as one does that was asked to.
    """

    exit_code: int
    asked: bool


def supervise(state: Path, command: list[str]) -> EngineEnd:
    """Run `command` until it ends."""
    redact = Redactor(map(Secret, read_secrets(os.environ).values()))
    log = os.open(state / "engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    # without a buffer: what a full disk refuses would be tried again with the next line
    with io.FileIO(log, "w") as file:
        engine = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # an engine without its supervisor would be out of everybody's sight
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
        )

        asked = False

        def pass_on(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            asked = True
            engine.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        assert engine.stdout is not None  # noqa: S101 - it was asked for above
        for line in engine.stdout:
            # a disk that is full takes no log, and is no reason to end an engine that answers
            with contextlib.suppress(OSError):
                file.write(redact(line).encode())
        return EngineEnd(engine.wait(), asked)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Supervise `dflash_deploy.serve` and write down how it ended."""
    state, config, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    me = ProcessId.of(os.getpid())
    assert me is not None  # noqa: S101 - this process runs
    run = {"pid": me.pid, "started": me.started, "config": config, "address": address}
    write_atomically(state / "run.json", json.dumps(run), mode=PRIVATE)
    end = supervise(state, [sys.executable, "-u", "-m", "dflash_deploy.serve"])
    write_atomically(state / "exit.json", json.dumps(asdict(end)), mode=PRIVATE)


if __name__ == "__main__":
    main()
