"""Ask the engine of a plan for its configuration, as a process or in a container of its image, without weights.

The process gets no secrets and a limited time; its output is bounded.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.errors import EngineMissing
from dflash_deploy.intake.documents import EngineAnswer, parse_document
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.command import CONTAINER_DRAFTER, CONTAINER_TARGET, engine_environment
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.answer import MARK
from dflash_deploy.serve.settings import Settings

LIMIT = 60.0
"""Seconds for one answer. vLLM 0.32 on two cores takes 12 to 20, most of them for its imports."""

MOST_OUTPUT = 1 << 20
"""Bytes of output that are kept, the last ones. An answer is shorter, and is the last that an engine writes."""

MOST_LINES, LONGEST_LINE = 200, 1 << 16
"""The same of a container: lines, and characters of each."""

BEAT = 0.2
"""Seconds between two checks of whether the process has ended."""

QUESTION = "dflash_deploy.serve.ask"
"""The module that asks, on this machine and in an image."""


@dataclass(frozen=True)
class Heard:
    """How the process ended, and the end of its output. `status` is `None` if its time was over."""

    status: int | None
    output: str

    @property
    def answer(self) -> EngineAnswer | None:
        """The last answer in the output; `None` if it has none that can be read."""
        lines = [line for line in self.output.splitlines() if line.startswith(MARK)]
        if self.status != 0 or not lines:
            return None
        try:
            return parse_document(lines[-1].removeprefix(MARK), EngineAnswer)
        except Invalid:
            return None


def ask(plan: Plan, target: Path, drafter: Path, *, seconds: float = LIMIT) -> Heard:
    """Ask the engine of a plan. `target` and `drafter` are directories with config.json and tokenizer.

    Raises EngineMissing if the engine is not on this machine: its image, or its installation.
    """
    if plan.runtime == "compose":
        return _ask_container(plan, target, drafter, seconds)
    kind = plan.engine.kind
    if kind.installed(plan.settings) is None:
        how = kind.how_to_install(plan.engine.native or kind.name)
        raise EngineMissing(f"{kind.title} is not installed in the environment of {sys.executable}", hint=how)
    return run_question([sys.executable, "-m", QUESTION], _environment(plan, target, drafter), seconds=seconds)


def _environment(plan: Plan, target: Path, drafter: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
    places = {Settings.model_path.name: str(target), Settings.drafter_path.name: str(drafter)}
    # Python must not import modules from the working directory
    return inherited | engine_environment(plan) | places | {"PYTHONSAFEPATH": "1"}


def run_question(command: list[str], environment: Mapping[str, str], *, seconds: float) -> Heard:
    """Run a command to its end or to the end of its time, then end all processes of its session."""
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # the terminal's Ctrl-C does not reach it, and its process group can be killed with it
        start_new_session=True,
    ) as process:
        try:
            output = _read(process, deadline)
        finally:
            # also what it started, which may live on after it and hold the pipe
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            in_time = time.monotonic() < deadline
            process.wait()
    return Heard(process.returncode if in_time else None, output.decode("utf-8", "replace"))


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """The last bytes that a process writes, until it ends or the time is over."""
    assert process.stdout is not None  # noqa: S101 - because of stdout=PIPE
    kept, descriptor = bytearray(), process.stdout.fileno()
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            # a child that lives on may hold the pipe open, so the end of the process is the end
            ended = process.poll() is not None
            while ready.select(0.0 if ended else BEAT) and time.monotonic() < deadline:
                block = os.read(descriptor, 1 << 16)
                if not block:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
                    return bytes(kept)
                kept += block
                del kept[:-MOST_OUTPUT]
            if ended:
                break
    return bytes(kept)


def _ask_container(plan: Plan, target: Path, drafter: Path, seconds: float) -> Heard:
    """Ask in a container of the plan's image, which sees the GPUs and these two directories, and no weights."""
    from dflash_deploy.runtime.docker import ContainerJob, run_job  # noqa: PLC0415 - Docker's client: 0.2 s

    job = ContainerJob(
        image=plan.settings.dflash_image,
        command=("-m", QUESTION),
        entry_point="python3",
        mounts={CONTAINER_TARGET: (target, False), CONTAINER_DRAFTER: (drafter, False)},
        environment=engine_environment(plan),
        gpus=not plan.engine.cpu,
        seconds=seconds,
    )
    lines: deque[str] = deque(maxlen=MOST_LINES)
    done = run_job(job, lambda line: lines.append(line[-LONGEST_LINE:]), fetch=False)
    return Heard(done.status if done.in_time else None, "\n".join(lines))
