"""`python -m dflash_deploy.runtime.supervisor STATE_DIRECTORY CONFIG ADDRESS [COMMAND]`: runs a native process.

Without COMMAND that is the engine. It writes its own PID to run.json, the redacted output to the log, and the exit code
to exit.json, all with mode 0600. It forwards SIGTERM. CONFIG is a fingerprint of the settings, ADDRESS their HOST:PORT.
An engine that keeps running after SIGTERM is killed: sooner if it does not listen at ADDRESS, and so has no request.
When the first process of an engine has ended, those of its process group that hold its output open end too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from dflash_deploy.deployment.directory import place_of
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.intake.documents import EngineEnd, RunState
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.runtime.log import PartedLog
from dflash_deploy.runtime.native_process import EXIT_FILE, LOG, RUN_FILE
from dflash_deploy.runtime.process import ProcessId, members_of_group
from dflash_deploy.serve.secrets import read_secrets

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies

# Seconds that other processes of an engine have after its first one ended: to end, and to end after SIGTERM.
LAST_WORDS, LAST_CHANCE = 5.0, 3.0

# Seconds that an engine has to end after SIGTERM. vLLM can miss it while it waits for its processes to start.
STARTING, SERVING = 10.0, 40.0


def supervise(state: Path, command: list[str], serves: Callable[[], bool] = lambda: False) -> EngineEnd:
    """Run `command` until it ends, and write its redacted output to the log. `serves`: whether requests reach it."""
    redact = Redactor(map(Secret, read_secrets(os.environ).values()))
    with contextlib.closing(PartedLog(state / LOG)) as log:
        engine = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # without its supervisor, no command could find the engine
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread until then
        )

        asked = threading.Event()

        def pass_on(number: int, frame: FrameType | None) -> None:
            first = not asked.is_set()
            asked.set()
            engine.send_signal(number)
            if first:
                threading.Thread(target=_insist, args=(engine, serves), daemon=True).start()

        signal.signal(signal.SIGTERM, pass_on)
        output_ended = threading.Event()
        threading.Thread(target=_end_others, args=(engine, output_ended), daemon=True).start()
        assert engine.stdout is not None  # noqa: S101 - because of stdout=PIPE
        for line in engine.stdout:
            # a full disk loses the log but must not end a working engine
            with contextlib.suppress(OSError):
                log.write(redact(line).encode())
        output_ended.set()
        return EngineEnd(exit_code=engine.wait(), asked=asked.is_set())


def _insist(engine: subprocess.Popen[str], serves: Callable[[], bool]) -> None:
    """Kill an engine, with all of its processes, that has not ended in its time."""
    try:
        engine.wait(SERVING if serves() else STARTING)
    except subprocess.TimeoutExpired:
        own_group = os.getpgrp() == os.getpid()
        for pid in (members_of_group(os.getpid()) - {os.getpid()}) if own_group else {engine.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _end_others(engine: subprocess.Popen[str], output_ended: threading.Event) -> None:
    """End what is left of an engine whose first process has ended, and holds its output open.

    A rank that waits for another machine does not notice that its parent is gone. It would keep the memory of its GPU.
    """
    engine.wait()
    if os.getpgrp() != os.getpid():
        # started by hand: the group is that of a shell
        return
    for number, grace in ((signal.SIGTERM, LAST_WORDS), (signal.SIGKILL, LAST_CHANCE)):
        if output_ended.wait(grace):
            return
        for pid in members_of_group(os.getpid()) - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host.strip("[]"), int(port))) == 0


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Supervise the command, or `dflash_deploy.serve` without one, and save how it ended."""
    # the working directory is that of the deployment, and stays so when it is renamed
    state, config, address, *command = Path(os.path.relpath(sys.argv[1])), *sys.argv[2:]
    me = ProcessId.of(os.getpid())
    assert me is not None  # noqa: S101 - this process runs
    run = RunState(pid=me.pid, started=me.started, config=config, address=address, place=place_of(state))
    write_atomically(state / RUN_FILE, run.model_dump_json(), mode=PRIVATE)
    engine = command or [sys.executable, "-u", "-m", "dflash_deploy.serve"]
    end = supervise(state, engine, serves=lambda: _listens(address))
    write_atomically(state / EXIT_FILE, end.model_dump_json(), mode=PRIVATE)
    if not end.asked:
        _record(state, end)


def _record(state: Path, end: EngineEnd) -> None:
    """Write an end that no command asked for into the journal of the deployment."""
    # it is in memory for as long as the engine runs: this room is imported when it is over
    from dflash_deploy.deployment.files import STATE  # noqa: PLC0415
    from dflash_deploy.deployment.journal import record_in  # noqa: PLC0415

    found = next((folder for folder in (state, *state.parents) if folder.name == STATE), None)
    if found is not None:
        record_in(found, "ended", "", f"the engine ended with exit code {end.exit_code}", str)


if __name__ == "__main__":
    main()
