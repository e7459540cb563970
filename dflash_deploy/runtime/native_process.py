"""The supervised process of a native deployment: the engine.

The supervisor that was started last for a state directory is found with run.json, or by the arguments of the processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import place_of
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.intake.documents import EngineEnd, Report, RunState, log_damage, read_state, remove_state
from dflash_deploy.redact import Redact
from dflash_deploy.runtime.log import read_page, shift
from dflash_deploy.runtime.process import ProcessId
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate

# The module that is started with the state directory, the fingerprint of the settings, the address, and the command
# that it runs; without a command it runs the engine.
SUPERVISOR = "dflash_deploy.runtime.supervisor"

# Files in a state directory: the supervisor that was started last, and how its process ended.
RUN_FILE, EXIT_FILE = "run.json", "exit.json"

LOG = "engine.log"  # the log in a state directory
_PROC = Path("/proc")
_ARGUMENTS = 6  # `python -m MODULE STATE_DIRECTORY CONFIG ADDRESS`, and possibly a command
_LONGEST_COMMAND = 64 * 1024  # bytes of a command line that are read


@dataclass(frozen=True)
class Supervised:
    """A supervisor: its process, the fingerprint of its settings, and the HOST:PORT of what it runs."""

    process: ProcessId
    config: str
    address: str


def recorded(run_file: Path, report: Report = log_damage) -> Supervised | None:
    """Return what run.json says; `None` if it is missing, damaged, or copied from another directory.

    A damaged one is set aside.
    """
    run = read_state(run_file, RunState, report=report)
    if run is None or not _is_of(run, run_file.parent):
        return None
    return Supervised(ProcessId(run.pid, run.started), run.config, run.address)


def _is_of(run: RunState, state: Path) -> bool:
    """Whether run.json was written for this directory, which may have been renamed since."""
    if run.place:
        return run.place == place_of(state)
    # of an older release: its supervisor names the directory, as it was called then
    try:
        arguments = _command_of(run.pid)
    except OSError:
        return True
    named = Path(arguments[3]) if len(arguments) > 3 else state
    return not named.exists() or _is_same(named, state)


def find_supervised(state: Path) -> Supervised | None:
    """Return a running supervisor of this state directory, found by its arguments; `None` if there is none.

    Only processes of root, of this user and of the directory's owner are trusted: any user can choose the arguments of
    a process, and the client sends its API key to the address in them.
    """
    try:
        trusted = {0, os.geteuid(), state.stat().st_uid}
    except OSError:
        return None
    for pid, arguments in _supervisors(trusted):
        process = ProcessId.of(pid)
        if process is not None and _is_same(Path(arguments[3]), state):
            return Supervised(process, arguments[4], arguments[5])
    return None


def _supervisors(trusted: set[int]) -> Iterator[tuple[int, list[str]]]:
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if entry.stat().st_uid not in trusted:
                continue
            arguments = _command_of(int(entry.name))
        except OSError:
            # the process has ended
            continue
        if len(arguments) >= _ARGUMENTS and arguments[1:3] == ["-m", SUPERVISOR]:
            yield int(entry.name), arguments


def _command_of(pid: int) -> list[str]:
    """The arguments of a process. Raises OSError if it has ended."""
    with (_PROC / str(pid) / "cmdline").open("rb") as file:
        return os.fsdecode(file.read(_LONGEST_COMMAND)).removesuffix("\0").split("\0")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


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

    def __init__(self, state: Path, redact: Redact, *, grace: float, report: Report = log_damage) -> None:
        """`grace`: seconds it gets to stop. `report` takes a line for a damaged file."""
        self._state = state
        self._redact = redact
        self._grace = grace
        self._report = report

    @property
    def log(self) -> Path:
        """The redacted output since the last start. Earlier parts, and earlier starts, are beside it with numbers."""
        return self._state / LOG

    def launch(self, launch: Invocation, narrate: Narrate) -> bool:
        """Start it; stop one that runs with another fingerprint first. Return whether anything had to be done.

        Raises EngineNotReady if its supervisor cannot be started.
        """
        run = self._run()
        if run is not None and run.process.alive():
            if run.config == launch.config:
                return False
            narrate("settings changed: stopping the running engine")
            run.process.end(grace=self._grace)
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size:
            shift(self.log)
        remove_state(self._exit_file, report=self._report)
        self._spawn(launch)
        return True

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

    def next_line(self) -> str:
        """Return the beginning: each start has its own log."""
        return ""

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
                        f"the engine's supervisor ended with code {process.returncode}",
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
