"""Runs a command with a timeout and returns its output, or the reason for a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass

LAST_WAIT = 1.0
"""Seconds for a killed command to exit. A command that waits for a hung driver inside the kernel never exits."""


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command. `problem` says why it failed; `absent` means not installed, `late` a timeout."""

    out: str = ""
    err: str = ""
    code: int | None = None
    problem: str = ""
    absent: bool = False
    late: bool = False

    @property
    def good(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.code == 0


def ask(*command: str, timeout: float) -> CommandOutput:
    """Run a command without input. After `timeout` seconds it is killed, together with its child processes."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # leader of a process group, so that its children can be killed with it
            start_new_session=True,
        )
    except FileNotFoundError:
        return CommandOutput(absent=True, problem=f"{command[0]} is not installed")
    except OSError as problem:
        return CommandOutput(problem=f"{command[0]} cannot be run: {problem.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        return CommandOutput(problem=f"{command[0]} did not respond within {timeout:g} s", late=True)
    except BaseException:
        _end(process)
        raise
    return CommandOutput(out, err, process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the command and its children. Do not wait if it cannot be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        # it stays in the kernel until the driver returns; without a return code Popen would warn that it still runs
        process.returncode = -signal.SIGKILL
