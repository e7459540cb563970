"""What others published for the same machine and models, beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from dflash_deploy.bench.figures import Row
from dflash_deploy.catalog.speeds import PublishedSpeed

LIKE = {
    "HumanEval": "code",
    "MBPP": "code",
    "code, raw prompt": "code",
    "code, chat template": "code",
    "Math500": "maths",
    "GSM8K": "maths",
    "MT-Bench": "chat",
    "short answers": "chat",
    "prose, raw prompt": "prose",
}
"""Which of our workloads a published one is nearest to. The prompts differ: it is no more than a comparison."""


@dataclass(frozen=True)
class Beside:
    """A published row, and ours of the nearest workload under as many streams. Rates in tokens/s of all streams.

    `ours_draft_tokens` may differ from theirs; what was not measured or not published is `None`.
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
    """Those published rows that something was measured for."""
    ours = {(row.workload, row.concurrency, row.drafter): row for row in rows}
    pairs = [(speed, LIKE.get(speed.workload, speed.workload)) for speed in published]
    return [
        _beside(
            speed,
            workload,
            ours.get((workload, speed.concurrency, True)),
            ours.get((workload, speed.concurrency, False)),
        )
        for speed, workload in pairs
        if any((workload, speed.concurrency, drafter) in ours for drafter in (True, False))
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
