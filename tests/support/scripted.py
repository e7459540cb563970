"""A runtime that plays a script, for states that a healthy engine cannot be brought into."""

from collections.abc import Iterator, Sequence

from dflash_deploy.runtime import EngineState, LogPage
from dflash_deploy.runtime.protocol import Narrate


class ScriptedRuntime:
    """Goes through `states` one look at a time and stays at the last; each look comes with the next of `pages`."""

    name = "scripted"

    def __init__(self, states: Sequence[EngineState], pages: Sequence[tuple[str, ...]] = ()) -> None:
        self._states = list(states)
        self._pages: Iterator[tuple[str, ...]] = iter(pages)
        self.halted = False

    def preflight(self) -> None:
        """Nothing is missing."""

    def start(self, narrate: Narrate) -> bool:
        """It is started."""
        return True

    def halt(self) -> None:
        """Note that it was stopped."""
        self.halted = True

    def down(self) -> bool:
        """There was something to stop."""
        return True

    def state(self) -> EngineState:
        """The next state."""
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def read_log(self, cursor: str = "") -> LogPage:
        """The next page."""
        return LogPage(next(self._pages, ()), cursor)
