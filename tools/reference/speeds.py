"""The page of published speeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dflash_deploy.catalog.speeds import PublishedSpeed
from tools.reference.markdown import BUILT, joined, table

_HEAD = f"""# Published speeds

Tokens per second that others have published, all requests together. `plan` shows those of your machine, `bench` prints
them next to its own measurements, and the [speed model](../explanation/speed-model.md) was fitted to a part of them.
Their prompts, lengths, engines and versions differ. This project has measured none of them.

`At a time`: the requests that ran together, if fewer; the others waited, so it is slower than that concurrency.
An empty cell was not published. MTP is the target's MTP head instead of the drafter, at the same block size; a ratio
below 1 is slower than no speculative decoding. The acceptance length includes the token that the target adds.

{BUILT.format(source="`dflash_deploy/catalog/speeds.yaml`")}
"""

_LOAD = ("workload", "concurrency", "at a time", "draft tokens")
_COLUMNS = (*_LOAD, "without the drafter", "with it", "ratio", "acceptance length")
_MTP = ("MTP head", "its ratio", "its acceptance length")


def page(speeds: Iterable[PublishedSpeed]) -> str:
    """The whole page, a table for each profile and model."""
    groups: dict[tuple[str, str], list[PublishedSpeed]] = {}
    for speed in speeds:
        groups.setdefault((speed.profile, speed.pair), []).append(speed)
    parts = [_HEAD]
    for (profile, pair), rows in groups.items():
        head = any(row.mtp for row in rows)
        columns = (*_COLUMNS, *(_MTP if head else ()), "engine", "source")
        parts.append(f"## {profile}: {pair}\n")
        for one in dict.fromkeys((row.measured_with, row.source) for row in rows):
            alike = [_row(row, head=head) for row in rows if (row.measured_with, row.source) == one]
            parts += _folded(columns, alike)
    return joined(*parts)


def _folded(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The table of one engine and source without empty columns."""
    kept = [number for number, _ in enumerate(columns[:-2]) if any(row[number] for row in rows)]
    yield f"Engine: {rows[0][-2]}; source: {rows[0][-1]}.\n"
    yield from table(tuple(columns[number] for number in kept), ([row[number] for number in kept] for row in rows))


def _row(speed: PublishedSpeed, *, head: bool) -> tuple[str, ...]:
    mtp = (_figure(speed.mtp), _ratio(speed.mtp, speed.plain), _figure(speed.mtp_acceptance_length))
    return (
        speed.workload,
        str(speed.concurrency),
        _figure(speed.sequences if speed.queued else None),
        _figure(speed.draft_tokens),
        _figure(speed.plain),
        _figure(speed.dflash),
        _ratio(speed.dflash, speed.plain),
        _figure(speed.acceptance_length),
        *(mtp if head else ()),
        speed.measured_with,
        speed.source,
    )


def _figure(value: float | None) -> str:
    return f"{value:g}" if value else ""


def _ratio(value: float | None, plain: float | None) -> str:
    return f"{value / plain:.1f}" if value and plain else ""
