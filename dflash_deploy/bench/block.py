"""The block that `vllm bench serve` prints, for comparison.

Labels and their order: vllm/benchmarks/serve.py, 0.32.0, without the two peaks, which are of bins of one second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Row, Spread

WIDTH = 50
LABEL = 40

_TIMES = (
    ("TTFT", "Time to First Token", "ttft_ms"),
    ("TPOT", "Time per Output Token (excl. 1st token)", "tpot_ms"),
    ("ITL", "Inter-token Latency", "itl_ms"),
)


def block(row: Row) -> str:
    """The figures of one row in that format."""
    lines = [_heading(" Serving Benchmark Result ", "="), *_totals(row)]
    for name, title, field in _TIMES:
        lines += [_heading(title, "-"), *_times(name, getattr(row, field))]
    return "\n".join([*lines, *_drafts(row), "=" * WIDTH])


def _totals(row: Row) -> Iterator[str]:
    tokens = row.output_tokens
    yield _line("Successful requests:", row.requests)
    yield _line("Failed requests:", row.failed)
    yield _line("Maximum request concurrency:", row.concurrency)
    yield _line("Benchmark duration (s):", row.duration_s)
    yield _line("Total input tokens:", row.input_tokens)
    yield _line("Total generated tokens:", tokens)
    yield _line("Request throughput (req/s):", row.requests_per_s)
    yield _line("Output token throughput (tok/s):", tokens / row.duration_s)
    yield _line("Total token throughput (tok/s):", (tokens + row.input_tokens) / row.duration_s)


def _times(name: str, spread: Spread | None) -> Iterator[str]:
    if spread is None:
        return
    yield _line(f"Mean {name} (ms):", spread.mean)
    yield _line(f"Median {name} (ms):", spread.p50)
    yield _line(f"P99 {name} (ms):", spread.p99)


def _drafts(row: Row) -> Iterator[str]:
    counted = row.counted
    if counted is None or not counted.drafts or not counted.draft_tokens:
        return
    yield _heading("Speculative Decoding", "-")
    yield _line("Acceptance rate (%):", 100 * counted.accepted_tokens / counted.draft_tokens)
    yield _line("Acceptance length:", counted.acceptance_length or 0.0)
    yield _line("Drafts:", counted.drafts)
    yield _line("Draft tokens:", counted.draft_tokens)
    yield _line("Accepted tokens:", counted.accepted_tokens)
    yield "Per-position acceptance (%):"
    for position, share in enumerate(counted.acceptance_by_position):
        yield _line(f"  Position {position}:", 100 * share)


def _heading(text: str, fill: str) -> str:
    return text.center(WIDTH, fill)


def _line(label: str, value: float) -> str:
    written = str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{label:<{LABEL}} {written:<10}"
