"""The text that /metrics answers: Prometheus's exposition format, within limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

LONGEST_LINE = 10_000
"""Characters of a line of /metrics; the longest one of an engine, with all its labels, has some hundreds."""


def read_samples(exposition: str) -> Iterator[Sample]:
    """Yield each sample of the text. Raises ValueError if it is not such a text, or if a line is too long."""
    # a third of the imports of `status`, whose engine may not run
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    if max(map(len, exposition.splitlines()), default=0) > LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE} characters")
    for family in text_string_to_metric_families(exposition):
        yield from family.samples
