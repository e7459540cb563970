"""The page of published speeds."""

from __future__ import annotations

from collections.abc import Iterable

from dflash_deploy.catalog.speeds import PublishedSpeed
from tests.support.reference.markdown import GENERATED, joined, table

_HEAD = f"""# Published speeds

Tokens per second that others have published, all requests together. `plan` shows those of your machine, `bench` prints
them next to its own measurements, and the [speed model](../explanation/speed-model.md) was fitted to a part of them.
Their prompts, lengths, engines and versions differ. This project has measured none of them.

An empty cell was not published. The acceptance length includes the token that the target adds.

{GENERATED.format(source="`dflash_deploy/catalog/speeds.yaml`")}
"""

_COLUMNS = ("workload", "concurrency", "draft tokens", "without the drafter", "with it", "ratio", "acceptance length")


def page(speeds: Iterable[PublishedSpeed]) -> str:
    """The whole page, a table for each profile and model."""
    groups: dict[tuple[str, str], list[PublishedSpeed]] = {}
    for speed in speeds:
        groups.setdefault((speed.profile, speed.pair), []).append(speed)
    parts = [_HEAD]
    for (profile, pair), rows in groups.items():
        parts += [f"## {profile}: {pair}\n", *table((*_COLUMNS, "source"), map(_row, rows))]
    return joined(*parts)


def _row(speed: PublishedSpeed) -> tuple[str, ...]:
    return (
        speed.workload,
        str(speed.concurrency),
        str(speed.draft_tokens),
        f"{speed.plain:g}" if speed.plain else "",
        f"{speed.dflash:g}",
        f"{speed.dflash / speed.plain:.1f}" if speed.plain else "",
        f"{speed.acceptance_length:g}" if speed.acceptance_length else "",
        speed.source,
    )
