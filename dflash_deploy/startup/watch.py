"""What an engine does while it is watched: one line for each look, made of what it has counted since the last one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dflash_deploy.client import Metrics

ENOUGH_DRAFTS = 20
"""Drafts of a window from which its acceptance says something."""

DECAYED = 0.6
"""Share of the best acceptance of this watch below which it has decayed (z-lab's discussion: 33 % fell to 20 %)."""

SILENT_LOOKS = 3
"""Looks in a row with requests at work and not one token, after which the engine hangs: prompts take time to read."""


@dataclass(frozen=True)
class Sample:
    """One look. `metrics` is `None` where the engine did not tell; `identity` changes when it is started anew."""

    at: float
    phase: str
    identity: str
    metrics: Metrics | None


@dataclass(frozen=True)
class Window:
    """What is shown of a window between two looks; `None` where nobody knows.

    `cache` is the used share of the KV cache, `by_position` the acceptance of each draft token in the window. `remark`
    is empty where nothing is to be said.
    """

    state: str
    running: int | None = None
    waiting: int | None = None
    tokens_per_second: float | None = None
    acceptance_length: float | None = None
    cache: float | None = None
    by_position: tuple[float, ...] = ()
    remark: str = ""


class Watch:
    """Turns looks into lines, and remembers what it takes to see a decay, a hang and a restart."""

    def __init__(self) -> None:
        self._before: Sample | None = None
        self._best = 0.0
        self._silent = 0
        self._restarts = 0

    def see(self, now: Sample) -> Window:
        """The line for the window that ends with this look."""
        before, self._before = self._before, now
        started_anew = before is not None and now.identity != before.identity
        if started_anew:
            self._restarts += 1
            self._best, self._silent = 0.0, 0
            before = None
        if now.metrics is None or now.metrics.engine is None:
            state = "does not answer" if now.phase == "running" else now.phase
            return Window(state, remark=self._restarted(started_anew))
        load = Window(now.phase, now.metrics.running, now.metrics.waiting, cache=now.metrics.cache)
        if before is None or before.metrics is None or now.at <= before.at:
            return replace(load, remark=self._restarted(started_anew))
        made = now.metrics.generated_tokens - before.metrics.generated_tokens
        drafts = now.metrics.drafts - before.metrics.drafts
        enough = drafts.drafts >= ENOUGH_DRAFTS
        length = drafts.acceptance_length if enough else None
        self._silent = self._silent + 1 if now.metrics.running and made == 0 else 0
        remark = self._decayed(length)
        if self._silent >= SILENT_LOOKS:
            remark = f"HANGS: {now.metrics.running} requests at work, no token in {self._silent} looks"
        return replace(
            load,
            tokens_per_second=max(made, 0) / (now.at - before.at),
            acceptance_length=length,
            by_position=drafts.acceptance_by_position if enough else (),
            remark=remark,
        )

    def _decayed(self, length: float | None) -> str:
        if length is None:
            return ""
        best, self._best = self._best, max(self._best, length)
        # the token that the target adds is no draft
        if best > 1 and (length - 1) < DECAYED * (best - 1):
            return f"DECAYED: acceptance length was {best:.1f}; other prompts, or docs/failures.md on prefix caching"
        return ""

    def _restarted(self, now: bool) -> str:
        if not now:
            return ""
        again = f", {self._restarts} times since this watch began" if self._restarts > 1 else ""
        return f"STARTED ANEW{again}: `dflash-deploy logs` says why"
