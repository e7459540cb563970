"""What makes a benchmark a failure: failed requests, drafts that contradict the plan, a speed-up that is too small."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_deploy.bench.figures import Row, at_concurrency
from dflash_deploy.errors import BenchmarkMissed
from dflash_deploy.serve.settings import Settings


def missed(rows: Sequence[Row], min_speedup: float | None, *, ours: bool) -> BenchmarkMissed | None:
    """The requirement that the rows miss; `None` if they meet all.

    `ours` says that the engine is known to count its drafts.
    """
    failed = [row for row in rows if row.failed]
    if failed:
        count, asked = sum(row.failed for row in failed), sum(row.requests + row.failed for row in rows)
        return BenchmarkMissed(
            f"{count} of {asked} requests failed: {failed[0].problem}",
            hint="the other figures are of answered requests; `dflash-deploy logs` shows the engine's side",
        )
    return _contradicted(rows, ours=ours) or _too_slow(rows, min_speedup)


def _contradicted(rows: Sequence[Row], *, ours: bool) -> BenchmarkMissed | None:
    """The engine's counters contradict what was said of its drafts."""
    for row in rows:
        if row.counted is None:
            continue
        if row.speculation in {"dflash", "mtp"} and ours and not row.counted.drafts:
            return BenchmarkMissed(
                "the engine reported no draft tokens: speculative decoding is off",
                hint="`dflash-deploy up` applies .env; then look for 'speculative' in `dflash-deploy logs`",
            )
        if row.speculation == "off" and row.counted.drafts:
            return BenchmarkMissed(
                f"the engine made {row.counted.drafts} drafts in the run without speculative decoding",
                hint="`dflash-deploy up` applies .env; --baseline-url must name an engine without a drafter",
            )
    return None


def _too_slow(rows: Sequence[Row], min_speedup: float | None) -> BenchmarkMissed | None:
    sped = [row for row in rows if row.speedup is not None and row.speculation != "mtp"]
    slow = [row for row in sped if min_speedup is not None and (row.speedup or 0.0) < min_speedup]
    if not slow:
        return None
    worst = min(slow, key=lambda row: row.speedup or 0.0)
    where = f"{worst.workload}, {at_concurrency(worst.concurrency)}"
    return BenchmarkMissed(
        f"{where}: a speed-up of {worst.speedup:.2f}, not {min_speedup:g}",
        hint=f"fewer draft tokens help at high concurrency: {Settings.dflash_num_spec_tokens} in .env",
    )
