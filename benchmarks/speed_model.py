"""The speed model against every published figure: no engine runs, so there is nothing to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.table import Table

from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.plan.speed import step_seconds

FITTED = frozenset({"b200", "dgx-spark"})
"""Profiles whose figures the constants of plan/speed.py were fitted to; the others are a test of them."""


@dataclass(frozen=True)
class Compared:
    """One published figure in tokens per second, and what the model says for the same acceptance length."""

    published: PublishedSpeed
    drafting: bool
    seen: float
    expected: float

    @property
    def error(self) -> float:
        """How far the model is off, as a share of the published figure."""
        return self.expected / self.seen - 1


def compared() -> Iterator[Compared]:
    """All figures that can be compared: those with the drafter need the acceptance length of their run."""
    catalog = load_catalog()
    counted = set()
    for row in catalog.speeds:
        profile, pair = catalog.profiles[row.profile], catalog.pairs[row.pair]
        plain = (row.profile, row.pair, row.workload, row.concurrency)
        # a baseline stands beside every number of draft tokens that was tried
        if row.plain is not None and plain not in counted:
            counted.add(plain)
            seconds = step_seconds(profile, pair, concurrency=row.concurrency, draft_tokens=0)
            yield Compared(row, False, row.plain, row.concurrency / seconds)
        if row.acceptance_length is not None:
            seconds = step_seconds(profile, pair, concurrency=row.concurrency, draft_tokens=row.draft_tokens)
            yield Compared(row, True, row.dflash, row.concurrency * row.acceptance_length / seconds)


def median_error(rows: list[Compared]) -> float:
    """The median of how far the model is off, whichever way."""
    return median(abs(row.error) for row in rows)


def table() -> Table:
    """Every figure beside the model's, and the median errors below."""
    rows = list(compared())
    columns = ("where", "workload", "streams", "drafts", "published", "model", "error")
    drawn = Table(*columns, title="speed model, tokens/s", box=box.SIMPLE_HEAD)
    for row in rows:
        seen = row.published
        drawn.add_row(
            seen.profile,
            seen.workload,
            str(seen.concurrency),
            str(seen.draft_tokens) if row.drafting else "",
            f"{row.seen:.4g}",
            f"{row.expected:.4g}",
            f"{row.error:+.0%}",
        )
    drawn.add_section()
    for name, chosen in (
        ("all", rows),
        ("B200, DGX Spark: fitted", [row for row in rows if row.published.profile in FITTED]),
        ("H100, RTX 3090: not fitted", [row for row in rows if row.published.profile not in FITTED]),
    ):
        drawn.add_row("median error", name, "", "", "", str(len(chosen)), f"{median_error(chosen):.0%}")
    return drawn
