"""How long a start takes, phase by phase, against how long the last one here took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy.catalog.hardware import FirstStart
from dflash_deploy.project import Deployment
from dflash_deploy.project.files import PRIVATE, write_if_changed

NAME = "last-start.json"
"""Stands in `.dflash/`: seconds of the last start that ended with an answer, by phase."""


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
    """Stands between who tells progress and who shows it, and adds the times."""

    def __init__(self, show: Show, usual: Mapping[str, float], first: FirstStart | None = None) -> None:
        self._show = show
        self._usual = usual
        self._whole = sum(usual.values()) or (first.seconds if first else None)
        self._began = self._phase_began = time.monotonic()
        self._phase = ""
        self.seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def show(self, progress: Progress) -> None:
        """Hand it on with the times that belong to it."""
        if progress.phase != self._phase:
            self._end_phase()
            self._phase = progress.phase
        timed = replace(
            progress,
            elapsed=self.elapsed,
            in_phase=time.monotonic() - self._phase_began,
            usual=self._whole,
            usual_in_phase=self._usual.get(progress.phase),
        )
        self._show(timed)

    def ended(self) -> dict[str, float]:
        """Seconds by phase, the last one ended now."""
        self._end_phase()
        return self.seconds

    def _end_phase(self) -> None:
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._phase_began
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
    """Write down how long this start took."""
    rounded = {phase: round(took, 1) for phase, took in seconds.items()}
    deployment.make_state()
    write_if_changed(_file(deployment), json.dumps(rounded, indent=2) + "\n", mode=PRIVATE)


def _file(deployment: Deployment) -> Path:
    return deployment.state / NAME
