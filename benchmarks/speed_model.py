"""The speed model compared with every published figure. No engine runs, so one pass is enough."""

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
"""Profiles whose figures the constants in plan/speed.py are fitted to; the other profiles test the constants."""


@dataclass(frozen=True)
class Compared:
    """One published figure in tokens per second, and the model's prediction for the same acceptance length."""

    published: PublishedSpeed
    drafting: bool
    seen: float
    expected: float

    @property
    def fitted(self) -> bool:
        """Whether the constants are fitted to it."""
        return self.published.profile in FITTED

    @property
    def error(self) -> float:
        """The model's error as a share of the published figure; positive if the model is too fast."""
        return self.expected / self.seen - 1


def compared() -> Iterator[Compared]:
    """All figures that can be compared. A figure with the drafter needs the acceptance length of its run."""
    catalog = load_catalog()
    counted = set()
    for row in catalog.speeds:
        if row.queued:
            continue
        profile, pair = catalog.profiles[row.profile], catalog.pairs[row.pair]
        plain = (row.profile, row.pair, row.workload, row.concurrency)
        # the same baseline is published once for each number of draft tokens
        if row.plain is not None and plain not in counted:
            counted.add(plain)
            seconds = step_seconds(profile, pair, concurrency=row.concurrency, draft_tokens=0)
            yield Compared(row, False, row.plain, row.concurrency / seconds)
        if row.acceptance_length is not None:
            seconds = step_seconds(profile, pair, concurrency=row.concurrency, draft_tokens=row.draft_tokens)
            yield Compared(row, True, row.dflash, row.concurrency * row.acceptance_length / seconds)


def median_error(rows: list[Compared]) -> float:
    """The median of the absolute errors."""
    return median(abs(row.error) for row in rows)


def table() -> Table:
    """Every published figure with the model's, and the median errors in the last rows."""
    rows = list(compared())
    columns = ("profile", "workload", "concurrency", "drafts", "published", "model", "error")
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
        ("fitted", [row for row in rows if row.fitted]),
        ("not fitted", [row for row in rows if not row.fitted]),
    ):
        drawn.add_row("median error", name, "", "", "", str(len(chosen)), f"{median_error(chosen):.0%}")
    return drawn
