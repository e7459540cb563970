"""Asking a command of this machine: an answer, or why there is none, and never for longer than was said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass

LAST_WAIT = 1.0
"""Seconds for a killed command to go. One that waits for a hung driver inside the kernel does not go at all."""


@dataclass(frozen=True)
class Answer:
    """What a command said. `problem` says in words why it said nothing, `absent` and `late` say two such reasons."""

    out: str = ""
    err: str = ""
    code: int | None = None
    problem: str = ""
    absent: bool = False
    late: bool = False

    @property
    def good(self) -> bool:
        """Whether it ran to its end and was content."""
        return self.code == 0


def ask(*command: str, timeout: float) -> Answer:
    """Run a command without input. One that does not end in `timeout` seconds is killed with all that it started."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # leader of a group, so that what it started can be ended with it
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(absent=True, problem=f"{command[0]} is not installed")
    except OSError as problem:
        return Answer(problem=f"{command[0]} cannot be run: {problem.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(problem=f"{command[0]} did not answer within {timeout:g} s", late=True)
    except BaseException:
        _end(process)
        raise
    return Answer(out, err, process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the command and its children; do not wait for one that cannot be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        # it stays in the kernel until the driver lets it go; nobody is to warn that it still runs
        process.returncode = -signal.SIGKILL
