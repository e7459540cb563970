"""The same deployment with other settings for a while, and as it was again afterwards, whatever happens meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FrameType

from dflash_deploy.deployment import Deployment
from dflash_deploy.plan import Plan
from dflash_deploy.runtime import runtime_for
from dflash_deploy.startup.bring_up import bring_up
from dflash_deploy.startup.progress import ShowProgress, Step, Timekeeper

Display = Callable[[], AbstractContextManager[ShowProgress]]
"""Opens what shows the progress of one start, for as long as that takes."""


@contextmanager
def temporary_settings(
    deployment: Deployment, plan: Plan, *, patience: float, display: Display
) -> Iterator[Callable[[Plan], None]]:
    """Let the block restart the engine with one plan after another; `plan` is what `.env` says, which is not written.

    When the block is done the engine is brought back and has answered. After an error or Ctrl-C it is only started,
    which a second Ctrl-C does not keep from happening: nobody is to find other settings running than `.env` has.
    Raises EngineNotReady and PreflightRefused as `up` does.
    """

    def become(other: Plan) -> None:
        with display() as show:
            bring_up(deployment, other, runtime_for(deployment, other), patience=patience, show=show)

    with _ended_by_interrupts():
        try:
            yield become
            become(plan)
        except BaseException:
            with _undisturbed(), display() as show:
                tell = partial(Timekeeper(show).tell, Step("bringing back what .env says"))
                runtime_for(deployment, plan).start(tell)
            raise


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """A request to end, as `kill` and a closing terminal send it, is an interrupt for as long as the block runs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Neither Ctrl-C nor a request to end counts in this process while the block runs."""

    def wait(number: int, frame: FrameType | None) -> None:
        # not SIG_IGN: the engine that is started here would inherit it
        return

    with _handled(wait, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """These signals go to the handler, but for those that this process was started to ignore, as under nohup."""
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in heeded.items():
            signal.signal(number, known)
