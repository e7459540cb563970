"""`status --watch`: samples of an engine's metrics, and one line for the window between two samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dflash_deploy.errors import SITE

if TYPE_CHECKING:
    from dflash_deploy.client.metrics import Metrics

ENOUGH_DRAFTS = 20  # drafts that a window needs before its acceptance length is shown

# Share of the best acceptance of this watch below which acceptance has decayed (z-lab: 33 % fell to 20 %).
DECAYED = 0.6

# Samples in a row with running requests and no token after which the engine hangs. Prefill takes time too.
SILENT_LOOKS = 3


@dataclass(frozen=True)
class Reading:
    """One sample, `at` in seconds. `metrics` is `None` if the engine did not answer; `identity` changes on restart."""

    at: float
    phase: str
    identity: str
    metrics: Metrics | None


@dataclass(frozen=True)
class Window:
    """What is shown for the window between two samples; `None` if unknown.

    `cache` is the used share of the KV cache. `remark` is empty if nothing needs attention.
    """

    state: str
    running: int | None = None
    waiting: int | None = None
    tokens_per_second: float | None = None
    acceptance_length: float | None = None
    cache: float | None = None
    remark: str = ""


class Watch:
    """Turns samples into windows and detects decayed acceptance, hangs and restarts."""

    def __init__(self) -> None:
        self._before: Reading | None = None
        self._best = 0.0
        self._silent = 0
        self._restarts = 0

    def see(self, now: Reading) -> Window:
        """Return the window that ends with this sample."""
        before, self._before = self._before, now
        restarted = before is not None and now.identity != before.identity
        if restarted:
            self._restarts += 1
            self._best, self._silent = 0.0, 0
            before = None
        if now.metrics is None or now.metrics.engine is None:
            state = "not responding" if now.phase == "running" else now.phase
            return Window(state, remark=self._restarted(restarted))
        load = Window(now.phase, now.metrics.running, now.metrics.waiting, cache=now.metrics.cache)
        if before is None or before.metrics is None or now.at <= before.at:
            return replace(load, remark=self._restarted(restarted))
        made = now.metrics.generated_tokens - before.metrics.generated_tokens
        drafts = now.metrics.drafts - before.metrics.drafts
        length = drafts.acceptance_length if drafts.drafts >= ENOUGH_DRAFTS else None
        # SGLang counts an answer's tokens at its end
        moved = made > 0 or now.metrics.computed > before.metrics.computed
        self._silent = self._silent + 1 if now.metrics.running and not moved else 0
        remark = self._decayed(length)
        if self._silent >= SILENT_LOOKS:
            remark = f"HANGS: {now.metrics.running} running requests, no token in {self._silent} samples"
        return replace(
            load,
            tokens_per_second=max(made, 0) / (now.at - before.at),
            acceptance_length=length,
            remark=remark,
        )

    def _decayed(self, length: float | None) -> str:
        if length is None:
            return ""
        best, self._best = self._best, max(self._best, length)
        # the token that the target adds is not a draft token
        if best > 1 and (length - 1) < DECAYED * (best - 1):
            causes = f"different prompts, or prefix caching ({SITE}/reference/failures.html)"
            return f"DECAYED: acceptance length was {best:.1f}; {causes}"
        return ""

    def _restarted(self, now: bool) -> str:
        if not now:
            return ""
        again = f", {self._restarts} times since this watch began" if self._restarts > 1 else ""
        return f"RESTARTED{again}: read why with `dflash-deploy logs`"
