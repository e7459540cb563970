"""One supervised process of a native deployment: the engine, or what serves beside it, such as a router."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.intake.documents import EngineEnd
from dflash_deploy.intake.state import Report, log_damage, read_state, remove_state
from dflash_deploy.redact import Redact
from dflash_deploy.runtime.log_file import read_page
from dflash_deploy.runtime.log_parts import shift
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import (
    EXIT_FILE,
    RUN_FILE,
    SUPERVISOR,
    Supervised,
    find_supervised,
    log_name,
    recorded,
)


@dataclass(frozen=True)
class Invocation:
    """How a process is started.

    `config` is a fingerprint of everything that a change of must restart it, `address` its HOST:PORT. The supervisor
    gets `environment` and redacts the secrets of the file that DFLASH_SECRETS_FILE names there. An empty `command` is
    the engine: `dflash_deploy.serve`.
    """

    environment: Mapping[str, str]
    config: str
    address: str
    directory: Path
    command: tuple[str, ...] = ()


class NativeProcess:
    """A process that outlives its command, with a supervisor that redacts its log and saves how it ended.

    Everything it writes is in its state directory: run.json, exit.json and the log. No two processes share one.
    """

    def __init__(self, state: Path, title: str, redact: Redact, *, grace: float, report: Report = log_damage) -> None:
        """`title` names it in messages. `grace`: seconds it gets to stop. `report` takes a line for a damaged file."""
        self._state = state
        self._title = title
        self._redact = redact
        self._grace = grace
        self._report = report

    @property
    def log(self) -> Path:
        """The redacted output since the last start. Earlier parts, and earlier starts, are beside it with numbers."""
        return self._state / log_name(self._state)

    def start(self, launch: Invocation, narrate: Narrate) -> bool:
        """Start it; stop one that runs with another fingerprint first. Return whether anything had to be done.

        Raises EngineNotReady if its supervisor cannot be started.
        """
        run = self._run()
        if run is not None and run.process.alive():
            if run.config == launch.config:
                return False
            narrate(f"settings changed: stopping the running {self._title}")
            run.process.end(grace=self._grace)
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size:
            shift(self.log)
        remove_state(self._exit_file, report=self._report)
        self._spawn(launch)
        return True

    def runs(self, config: str) -> bool:
        """Return whether it runs with this fingerprint."""
        run = self._run()
        return run is not None and run.process.alive() and run.config == config

    def halt(self, *, at_once: bool = False) -> None:
        """Stop it and keep its log. `at_once`: kill it, without time to end."""
        run = self._run()
        if run is not None:
            run.process.end(grace=0.0 if at_once else self._grace)

    def down(self) -> bool:
        """Stop it and forget it; return whether it ran."""
        run = self._run()
        there = run is not None and run.process.alive()
        self.halt()
        remove_state(self._run_file, report=self._report)
        remove_state(self._exit_file, report=self._report)
        return there

    def state(self) -> EngineState:
        """Return whether the supervisor runs; if not, the end of the process that it saved."""
        run = self._run()
        if run is None:
            return EngineState("absent")
        identity = f"process {run.process.pid}"
        if run.process.alive():
            return EngineState("running", identity=identity, address=run.address)
        end = read_state(self._exit_file, EngineEnd, report=self._report)
        if end is None:
            # the supervisor was killed too, the machine was rebooted, or the file was damaged
            return EngineState("exited", identity=identity)
        return EngineState("exited", exit_code=end.exit_code, identity=identity, asked=end.asked)

    def memory(self) -> int | None:
        """Return the bytes of memory of the supervisor and all processes behind it; `None` if it does not run."""
        run = self._run()
        return run.process.memory() if run is not None and run.process.alive() else None

    def read_log(self, cursor: str = "") -> LogPage:
        """Return complete lines after `cursor`, in bytes since the start; of a long log its beginning and its end."""
        return read_page(self.log, cursor, self._redact)

    @property
    def _run_file(self) -> Path:
        return self._state / RUN_FILE

    @property
    def _exit_file(self) -> Path:
        return self._state / EXIT_FILE

    def _spawn(self, launch: Invocation) -> None:
        """Start the supervisor and wait until it has written run.json, so that no process is lost."""
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        arguments = [str(self._state), launch.config, launch.address, *launch.command]
        with os.fdopen(log) as file:
            process = subprocess.Popen(
                [sys.executable, "-m", SUPERVISOR, *arguments],
                env=dict(launch.environment),
                cwd=launch.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # errors of the supervisor itself
                stderr=file,
                # the terminal's Ctrl-C does not reach it, and its process group can be killed with it
                start_new_session=True,
            )
        try:
            while (run := recorded(self._run_file)) is None or run.process.pid != process.pid:
                if process.poll() is not None:
                    raise EngineNotReady(
                        f"the {self._title}'s supervisor ended with code {process.returncode}",
                        hint="read why with `dflash-deploy logs`",
                    )
                time.sleep(0.02)
        finally:
            # it outlives this command on purpose: prevent subprocess's warning that it still runs
            process.returncode = process.returncode or 0

    def _run(self) -> Supervised | None:
        """Return the process that was started last: as recorded, or as found among the processes.

        A command that was killed may have started one whose supervisor has not written run.json yet.
        """
        run = recorded(self._run_file, self._report)
        if run is not None and run.process.alive():
            return run
        return find_supervised(self._state) or run
