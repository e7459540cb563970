"""Run a deployment with other settings for a while, and restore its own settings afterwards, also after errors."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from dflash_deploy.runtime import runtime_for
from dflash_deploy.startup.apart import ComposeFile
from dflash_deploy.startup.bring_up import bring_up
from dflash_deploy.startup.progress import Display, Step, Timekeeper

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


@contextmanager
def temporary_settings(
    deployment: Deployment, plan: Plan, *, patience: float, display: Display
) -> Iterator[Callable[[Plan], None]]:
    """Let the block restart the engine with other plans. `plan` is the plan of `.env`, which is never written.

    After the block, the engine runs `plan` again and has answered. After an error or Ctrl-C it is started with `plan`
    without waiting for an answer; a second Ctrl-C cannot prevent that. So the engine never keeps temporary settings.
    Raises EngineNotReady and PreflightRefused as `up` does.
    """

    file = ComposeFile(deployment, plan)

    def become(other: Plan) -> None:
        file.write(other)
        with display() as show:
            bring_up(deployment, other, runtime_for(deployment, other), patience=patience, show=show)

    with _ended_by_interrupts():
        try:
            yield become
            become(plan)
        except BaseException:
            with _undisturbed(), display() as show:
                file.write(plan)
                tell = partial(Timekeeper(show).tell, Step("restoring the settings of .env"))
                runtime_for(deployment, plan).start(tell)
            raise


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, as sent by `kill` and a closing terminal, into KeyboardInterrupt in the block."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP in this process while the block runs."""

    def wait(number: int, frame: FrameType | None) -> None:
        # not SIG_IGN: the engine started in the block would inherit it
        return

    with _handled(wait, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals, except those that this process was started to ignore, as under nohup."""
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in heeded.items():
            signal.signal(number, known)
