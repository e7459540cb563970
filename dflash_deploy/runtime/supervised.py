"""The supervisor that was started last for a state directory: from run.json, or from the arguments of the processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.places import place_of
from dflash_deploy.intake.documents import RunState
from dflash_deploy.intake.state import Report, log_damage, read_state
from dflash_deploy.runtime.process import ProcessId

SUPERVISOR = "dflash_deploy.runtime.supervisor"
"""The module that is started with the state directory, the fingerprint of the settings, the address, and the command
that it runs; without a command it runs the engine."""

RUN_FILE, EXIT_FILE = "run.json", "exit.json"
"""Files in a state directory: the supervisor that was started last, and how its process ended."""

ROUTER, DOOR = "router", "door"
PROMETHEUS, ALERTMANAGER = "prometheus", "alertmanager"
"""State directories below `.dflash/` of what runs beside the engine. Their logs have their names."""

_PROC = Path("/proc")
_ARGUMENTS = 6
"""`python -m MODULE STATE_DIRECTORY CONFIG ADDRESS`, and possibly a command."""

_LONGEST_COMMAND = 64 * 1024
"""Bytes of a command line that are read."""


@dataclass(frozen=True)
class Supervised:
    """A supervisor: its process, the fingerprint of its settings, and the HOST:PORT of what it runs."""

    process: ProcessId
    config: str
    address: str


def log_name(state: Path) -> str:
    """The name of the log in a state directory."""
    return f"{state.name if state.name in {ROUTER, DOOR, PROMETHEUS, ALERTMANAGER} else 'engine'}.log"


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
