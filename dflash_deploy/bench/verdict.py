"""Whether drafts pay, in words, and how far the figures can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median

from dflash_deploy.bench.figures import Row, at_concurrency

# Speed-ups from which on drafts pay, and below which they cost speed: less is within what repeats differ by.
PAYS, COSTS = 1.05, 0.95

# Difference of the fastest and the slowest repeat, as a share of the median, above which repeats disagree.
DISAGREE = 0.2

ACCEPTED = 3.0  # tokens per step from which on drafts that cost speed cost it by the time of a step

SHORT_S = 5.0  # seconds; a shorter measurement says little
REUSED = 0.5  # share of the tokens of the turn before below which the prefix cache did not help
BUSY = 0.5  # share of the cores that other programs may use before a run


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each workload that was measured with and without drafts; one line if none was."""
    compared = [row for row in rows if row.speedup is not None and row.speculation == "dflash"]
    if not compared:
        yield "verdict    unknown: only --baseline says whether drafts pay"
    singles = [row for row in compared if row.turn is None]
    for workload in dict.fromkeys(row.workload for row in singles):
        found = sorted((row for row in singles if row.workload == workload), key=lambda row: row.concurrency)
        parts = (_part(kind, [row for row in found if _kind(row) == kind]) for kind in ("pay", "change little", "cost"))
        yield f"verdict    {workload}: drafts {'; '.join(filter(None, parts))}"
        one, length, gain = found[0], found[0].acceptance_length, found[0].speedup
        if one.concurrency == 1 and _kind(one) == "cost" and length and gain:
            took = f"{length / gain:.1f} times as long as one without"
            bigger = "; a larger target gains more" if length >= ACCEPTED else ""
            yield f"because    a step with drafts adds {length:.2f} tokens, and takes {took}{bigger}"
    for talk in conversations(compared):
        parts = (_turns(kind, list(turns)) for kind, turns in groupby(talk, _kind))
        yield f"verdict    {talk[0].workload}, {at_concurrency(talk[0].concurrency)}: drafts {'; '.join(parts)}"
    for talk in conversations([row for row in rows if row.speculation != "off"] or rows):
        yield f"prefixes   {talk[0].workload}, {at_concurrency(talk[0].concurrency)}: {_cached(talk)}"
    if any(_kind(row) == "cost" for row in compared):
        yield "hint: `dflash-deploy tune` finds the draft tokens for this load"


def conversations(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The turns of each conversation, by workload, concurrency and speculation."""
    talks = [row for row in rows if row.turn is not None]
    for place in dict.fromkeys((row.workload, row.concurrency, row.speculation) for row in talks):
        yield [row for row in talks if (row.workload, row.concurrency, row.speculation) == place]


def cautions(rows: Sequence[Row], load: float, cores: int) -> Iterator[str]:
    """Why the figures may be wrong. `load` is the load average of this machine before the run."""
    if load > BUSY * cores:
        yield f"busy       this machine had a load average of {load:.1f} on {cores} cores before the run"
    odd = [row for row in rows if len(row.rounds) > 1 and _difference(row) > DISAGREE]
    if odd:
        worst = max(odd, key=_difference)
        told = f"{worst.workload} at concurrency {worst.concurrency} by {100 * _difference(worst):.0f} %"
        yield f"unsteady   repeats differ: {told}"
    if rows and max(len(row.rounds) for row in rows) == 1:
        yield "unsteady   one repeat: small differences may be chance (--repeats 5)"
    singles = [row for row in rows if row.turn is None]
    if short := [row for row in singles if row.duration_s < SHORT_S]:
        yield f"short      {len(short)} of {len(singles)} measurements took less than {SHORT_S:g} s (--requests N)"


def _kind(row: Row) -> str:
    speedup = row.speedup or 1.0
    return "pay" if speedup >= PAYS else "cost" if speedup < COSTS else "change little"


def _part(kind: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    where = ", ".join(f"{row.concurrency} ({row.speedup:.2f} times)" for row in rows)
    return f"{kind} at concurrency {where}"


def _turns(kind: str, rows: Sequence[Row]) -> str:
    """Turns in a row with the same effect of drafts, from the tokens of the first prompts on."""
    first, last = rows[0], rows[-1]
    turns = f"turn {first.turn}" if first is last else f"turns {first.turn} to {last.turn}"
    gains = sorted({f"{row.speedup:.2f}" for row in rows})
    return f"{kind} in {turns}, from {_prompt(first):,.0f} tokens on ({' to '.join({gains[0]: 0, gains[-1]: 0})} times)"


def _cached(turns: Sequence[Row]) -> str:
    """How much of the turn before a turn finds in the prefix cache."""
    known = [
        (turn.turn, turn.cached_share * _prompt(turn) / _prompt(before))
        for before, turn in pairwise(turns)
        if turn.cached_share is not None and _prompt(before)
    ]
    if not known:
        return "the prefix cache is unknown: the engine reports no cached tokens"
    at, least = min(known, key=lambda one: one[1])
    if not any(kept for _, kept in known):
        return "each turn reads its prompt again: prefix caching is off"
    lost = f"; turn {at} reads its prompt again" if least < REUSED else ""
    return f"the prefix cache keeps at least {100 * least:.0f} % of the turn before{lost}"


def _prompt(row: Row) -> float:
    """Mean tokens of a prompt."""
    return row.input_tokens / row.requests if row.requests else 0.0


def _difference(row: Row) -> float:
    middle = median(row.rounds)
    return (max(row.rounds) - min(row.rounds)) / middle if middle else 0.0
