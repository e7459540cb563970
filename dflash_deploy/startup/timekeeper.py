"""How long a start takes, phase by phase, against how long the last one here took."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.startup.phases import Step

NAME = "last-start.json"
"""Stands in `.dflash/`: seconds of the last start that ended with an answer, by phase."""


COMPOSE_PHASES = frozenset({"pulling the image", "building the image"})
"""What a first start does and later ones do not: no measure of them."""


@dataclass(frozen=True)
class Progress:
    """What a person sees while waiting. All times are in seconds.

    `elapsed` counts from the beginning, `in_phase` from that of the phase. `done` of `total` are 0 where nothing is
    counted. `usual` is what the whole start took here last time, `usual_in_phase` this phase; before the first one it
    is what others have told of such a machine. `None` where nothing is known.
    """

    phase: str
    elapsed: float
    last_line: str
    done: int = 0
    total: int = 0
    in_phase: float = 0.0
    usual: float | None = None
    usual_in_phase: float | None = None


Show = Callable[[Progress], None]


class Timekeeper:
    """Stands between what tells progress and who shows it, and knows the time: the one clock of a start."""

    def __init__(
        self, show: Show, usual: Mapping[str, float] = MappingProxyType({}), first: float | None = None
    ) -> None:
        """`usual` are the seconds of the last start by phase, `first` those of a first one as a whole."""
        self._show = show
        self._usual = usual
        self._whole = sum(usual.values()) or first
        self._began = self._phase_began = time.monotonic()
        self._phase = ""
        self._seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, step: Step, line: str) -> None:
        """Show where it is, with the times that belong to it."""
        if step.phase != self._phase:
            self._end_phase()
            self._phase = step.phase
        progress = Progress(
            step.phase,
            self.elapsed,
            line,
            step.done,
            step.total,
            in_phase=time.monotonic() - self._phase_began,
            usual=self._whole,
            usual_in_phase=self._usual.get(step.phase),
        )
        self._show(progress)

    def ended(self) -> dict[str, float]:
        """Seconds by phase, the last one ended now."""
        self._end_phase()
        return self._seconds

    def _end_phase(self) -> None:
        now = time.monotonic()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._phase_began
        self._phase_began = now


def usual_seconds(deployment: Deployment) -> dict[str, float]:
    """Seconds by phase of the last start of this deployment that ended with an answer; nothing where none has."""
    try:
        known = json.loads(_file(deployment).read_text(encoding="utf-8"))
        return {str(phase): float(seconds) for phase, seconds in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        # whoever writes into it loses a comparison, not a start
        return {}


def remember_seconds(deployment: Deployment, seconds: Mapping[str, float]) -> None:
    """Write down how long this start took, without what later ones leave out. A full disk costs no more than that."""
    rounded = {phase: round(took, 1) for phase, took in seconds.items() if phase not in COMPOSE_PHASES}
    with contextlib.suppress(OSError):
        deployment.make_state()
        write_atomically(_file(deployment), json.dumps(rounded, indent=2) + "\n", mode=PRIVATE)


def _file(deployment: Deployment) -> Path:
    return deployment.state / NAME
