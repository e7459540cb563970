"""What each key used, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_deploy.cli.shown import Grid

if TYPE_CHECKING:
    from dflash_deploy.client.key_usage import KeyUsage


def usage_table(usage: Sequence[KeyUsage]) -> Grid:
    """One row for each key."""
    drawn = Grid("name", "requests", "refused", "cancelled", "tokens read", "generated", "in flight")
    for used in usage:
        refused = sum(count for status, count in used.requests.items() if status[:1] in {"4", "5"})
        counts = (
            sum(used.requests.values()),
            refused,
            used.requests.get("cancelled", 0),
            used.prompt_tokens,
            used.generation_tokens,
            used.in_flight,
        )
        drawn.add_row(used.name, *map(str, counts))
    return drawn
