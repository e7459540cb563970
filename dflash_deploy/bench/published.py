"""Published figures for the same machine and models, beside those measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Row
    from dflash_deploy.catalog.speeds import PublishedSpeed

LIKE = {
    "HumanEval": ("humaneval", "code"),
    "MBPP": ("mbpp", "code"),
    "code, raw prompt": ("code",),
    "code, chat template": ("code",),
    "Math500": ("math500", "maths"),
    "GSM8K": ("gsm8k", "maths"),
    "MT-Bench": ("mt-bench", "chat"),
    "short answers": ("chat",),
    "prose, raw prompt": ("prose",),
    "code": ("code",),
    "prose": ("prose",),
    "reasoning": ("maths",),
    "dialogue": ("chat",),
    "code, reasoning, maths, prose": ("code",),
}
"""Workloads to compare a published one with, the most similar first. Prompts, lengths and engines differ."""


@dataclass(frozen=True)
class Beside:
    """A published row, and ours of the most similar workload at the same concurrency. Rates in tokens/s in total.

    `ours_draft_tokens` may differ from theirs. Values that were not measured or not published are `None`.
    """

    workload: str
    concurrency: int
    draft_tokens: int
    plain: float | None
    dflash: float
    acceptance_length: float | None
    source: str
    ours_workload: str
    ours_draft_tokens: int | None
    ours_plain: float | None
    ours_dflash: float | None
    ours_acceptance_length: float | None

    def document(self) -> dict[str, object]:
        """The row for `--json`."""
        return asdict(self)


def beside(published: Iterable[PublishedSpeed], rows: Sequence[Row]) -> list[Beside]:
    """The published rows with a measurement to compare."""
    ours = {(row.workload, row.concurrency, row.speculation): row for row in rows}
    measured = {(row.workload, row.concurrency) for row in rows}
    pairs = [
        (speed, next((name for name in LIKE.get(speed.workload, ()) if (name, speed.concurrency) in measured), None))
        for speed in published
    ]
    return [
        _beside(speed, name, ours.get((name, speed.concurrency, "dflash")), ours.get((name, speed.concurrency, "off")))
        for speed, name in pairs
        if name is not None
    ]


def _beside(speed: PublishedSpeed, workload: str, drafted: Row | None, plain: Row | None) -> Beside:
    return Beside(
        workload=speed.workload,
        concurrency=speed.concurrency,
        draft_tokens=speed.draft_tokens,
        plain=speed.plain,
        dflash=speed.dflash,
        acceptance_length=speed.acceptance_length,
        source=speed.source,
        ours_workload=workload,
        ours_draft_tokens=drafted.draft_tokens if drafted else None,
        ours_plain=plain.tokens_per_s if plain else None,
        ours_dflash=drafted.tokens_per_s if drafted else None,
        ours_acceptance_length=drafted.acceptance_length if drafted else None,
    )
