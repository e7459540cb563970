"""Figures of agents' conversations, by turn and by context length, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Annotated

from dflash_deploy.bench.agents import TurnLoad
from dflash_deploy.bench.figures import DRAFTER, Speculation, spread
from dflash_deploy.bench.verdict import COSTS, PAYS
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.document import Count, Documented, Keywords

Ratio = Annotated[float, Keywords(minimum=0)]

SHORTEST_CONTEXT = 1024
"""Tokens up to which all contexts are one."""

REUSED = 0.5
"""Share of the tokens of the turn before below which the prefix cache did not help."""

FALLS = 0.8
"""Share of the acceptance length of short contexts below which it falls with context."""

GROWS = 1.2
"""Memory after the last turn, as a multiple of that after the first, that is worth a line."""

GIB = 2**30


@dataclass(frozen=True)
class Stage(Documented):
    """One turn of all agents, or all turns up to a context length. `None` is what was not measured."""

    at: Count
    """The turn, from 1; or the context: prompts of at most this many tokens, and of more than half of it."""
    drafter: bool | None
    """Whether tokens are drafted; null if that is unknown."""
    requests: Count
    """Requests that were answered."""
    failed: Count
    """Requests that failed."""
    problem: str
    """Why the first of them failed; empty if none did."""
    prompt_tokens: Ratio | None
    """Median tokens of a prompt."""
    cached_share: Ratio | None
    """Share of the prompts' tokens that were in the prefix cache."""
    ttft_ms: Ratio | None
    """Median time to the first token, in milliseconds."""
    ttft_p95_ms: Ratio | None
    """95th percentile of it."""
    tokens_per_s: Ratio | None
    """Median tokens per second of one request after its first token."""
    answer_tokens_per_s: Ratio | None
    """Median tokens per second of one request, its prompt included."""
    speedup: Ratio | None
    """`answer_tokens_per_s` divided by that without speculative decoding; null if both were not measured."""
    acceptance_length: Ratio | None
    """Mean tokens per step, by the engine's counters; null if nothing was drafted or counted."""
    waiting: Count | None
    """Longest queue that was seen."""
    memory_bytes: Count | None
    """Host memory of the engine afterwards."""


STAGE_COLUMNS = ("drafts", "prompt", "cached", "TTFT ms", "tokens/s", "speed-up", "length", "queue", "MiB", "failed")
"""The columns of `stage_cells`, after the turn or the context."""

STAGE_UNITS = (
    "Medians over requests: tokens of the prompt and their share in the prefix cache, TTFT p50 / p95, tokens/s of one "
    "request after its first token, speed-up of the whole answer; host memory in MiB"
)


def stage_cells(one: Stage) -> tuple[str, ...]:
    """A stage as texts of a table."""

    def text(value: float | None, form: str, factor: float = 1) -> str:
        return "-" if value is None else format(value * factor, form)

    return (
        f"{one.at:,}",
        {True: "on", False: "off", None: "?"}[one.drafter],
        text(one.prompt_tokens, ",.0f"),
        "-" if one.cached_share is None else f"{100 * one.cached_share:.0f} %",
        f"{text(one.ttft_ms, ',.0f')} / {text(one.ttft_p95_ms, ',.0f')}",
        text(one.tokens_per_s, ".1f"),
        text(one.speedup, ".2f"),
        text(one.acceptance_length, ".2f"),
        text(one.waiting, "d"),
        text(one.memory_bytes, ",.0f", 2**-20),
        str(one.failed),
    )


def stage_of(at: int, turns: Sequence[TurnLoad], speculation: Speculation) -> Stage:
    """The figures of turns."""
    asked = [request for one in turns for request in one.requests]
    answered = [request for request in asked if not request.problem]
    cached = _cached(turns, answered)
    counted = [one.after.drafts - one.before.drafts for one in turns if one.after and one.before]
    drafts, accepted = sum(one.drafts for one in counted), sum(one.accepted_tokens for one in counted)
    ttft = spread([request.ttft for request in answered])
    queues = [one.waiting for one in turns if one.waiting is not None]
    sizes = [one.memory for one in turns if one.memory is not None]
    prompts = sum(request.prompt_tokens for request in answered)
    return Stage(
        at=at,
        drafter=DRAFTER[speculation] if speculation != "unknown" else (bool(drafts) if counted else None),
        requests=len(answered),
        failed=len(asked) - len(answered),
        problem=next((request.problem for request in asked if request.problem), ""),
        prompt_tokens=_middle([request.prompt_tokens for request in answered]),
        cached_share=None if cached is None or not prompts else round(min(cached / prompts, 1.0), 4),
        ttft_ms=ttft.p50 if ttft else None,
        ttft_p95_ms=ttft.p95 if ttft else None,
        tokens_per_s=_middle([1 / request.tpot for request in answered if request.tpot]),
        answer_tokens_per_s=_middle([one.completion_tokens / one.seconds for one in answered if one.seconds]),
        speedup=None,
        acceptance_length=1 + accepted / drafts if drafts else None,
        waiting=max(queues, default=None),
        memory_bytes=sizes[-1] if sizes else None,
    )


def _middle(values: Sequence[float]) -> float | None:
    return float(median(values)) if values else None


def _cached(turns: Sequence[TurnLoad], answered: Sequence[TimedCompletion]) -> int | None:
    """Cached tokens of prompts: as each answer says, else as the engine counts."""
    said = [request.cached_tokens for request in answered]
    if said and None not in said:
        return sum(filter(None, said))
    counted = [
        one.after.cached_tokens - one.before.cached_tokens
        for one in turns
        if one.after and one.before and one.after.cached_tokens is not None and one.before.cached_tokens is not None
    ]
    return max(sum(counted), 0) if counted else None


def by_turn(loads: Sequence[Sequence[TurnLoad]], speculation: Speculation) -> list[Stage]:
    """The figures of each turn, over all repeats."""
    return [stage_of(turns[0].turn, turns, speculation) for turns in zip(*loads, strict=True)]


def by_context(loads: Sequence[Sequence[TurnLoad]], speculation: Speculation) -> list[Stage]:
    """The figures of the turns of each context length, which doubles from one to the next."""
    places: dict[int, list[TurnLoad]] = {}
    for one in (turn for load in loads for turn in load):
        prompt = _middle([request.prompt_tokens for request in one.requests if not request.problem])
        if prompt:
            places.setdefault(max(2 ** math.ceil(math.log2(prompt)), SHORTEST_CONTEXT), []).append(one)
    return [stage_of(at, turns, speculation) for at, turns in sorted(places.items())]


def with_baseline(drafted: Sequence[Stage], plain: Sequence[Stage]) -> list[Stage]:
    """All stages, those with drafts with their speed-up, each before the one without at the same place."""
    bases = {one.at: one.answer_tokens_per_s for one in plain}
    sped = [replace(one, speedup=_ratio(one.answer_tokens_per_s, bases.get(one.at))) for one in drafted]
    return sorted([*sped, *plain], key=lambda one: one.at)


def _ratio(ours: float | None, base: float | None) -> float | None:
    return ours / base if ours and base else None


def agent_verdicts(turns: Sequence[Stage], contexts: Sequence[Stage]) -> Iterator[str]:
    """What the figures mean: drafts by context, the prefix cache, the queue, and memory."""
    mine = [one for one in turns if one.drafter is not False] or list(turns)
    yield _of_drafts(contexts)
    yield _of_cache(mine)
    yield from _of_queue(mine)
    sizes = [one.memory_bytes for one in mine if one.memory_bytes]
    if sizes and sizes[-1] > GROWS * sizes[0]:
        yield (
            f"the engine's memory grew from {sizes[0] / GIB:.2f} to {sizes[-1] / GIB:.2f} GiB: "
            "`dflash-deploy test --soak 10` says whether it continues"
        )


UNKNOWN_CACHE = "the prefix cache is unknown: the engine reports no cached tokens"


def _of_queue(stages: Sequence[Stage]) -> Iterator[str]:
    if queue := max((one.waiting or 0 for one in stages), default=0):
        yield f"the queue was up to {queue} long: more requests than the engine serves at the same time"


def _of_drafts(contexts: Sequence[Stage]) -> str:
    sped = [(one.at, one.speedup) for one in contexts if one.speedup is not None]
    if sped:
        costs = [at for at, speedup in sped if speedup < COSTS]
        pays = [f"{tokens(at)} ({speedup:.2f} times)" for at, speedup in sped if speedup >= PAYS]
        tail = next((at for n, (at, _) in enumerate(sped) if all(gain < COSTS for _, gain in sped[n:])), None)
        if tail is not None:
            return f"from {tokens(tail)} on the drafter costs more than it gains ({sped[-1][1]:.2f} times)"
        if costs:
            return f"drafts cost speed at {', '.join(map(tokens, costs))}, but not beyond"
        return f"drafts pay at {', '.join(pays)}" if pays else "drafts change little at any length"
    lengths = [(one.at, one.acceptance_length) for one in contexts if one.acceptance_length]
    unknown = "only --baseline says whether drafts pay"
    if not lengths:
        return f"no drafts were counted; {unknown}"
    (first, short), (last, long) = lengths[0], lengths[-1]
    if long < FALLS * short:
        return f"acceptance length falls from {short:.2f} at {tokens(first)} to {long:.2f} at {tokens(last)}; {unknown}"
    return f"acceptance length {long:.2f} at {tokens(last)}; {unknown}"


def _of_cache(turns: Sequence[Stage]) -> str:
    """How much of the turn before a turn finds in the prefix cache."""
    known = [
        (one.at, one.cached_share * one.prompt_tokens / before.prompt_tokens)
        for before, one in pairwise(turns)
        if one.cached_share is not None and one.prompt_tokens and before.prompt_tokens
    ]
    if not known:
        return UNKNOWN_CACHE
    lost = next(((at, reused) for at, reused in known if reused < REUSED), None)
    if lost is None:
        least = 100 * min(reused for _, reused in known)
        return f"the prefix cache keeps {least:.0f} % or more of the turn before"
    at, reused = lost
    if not any(reused for _, reused in known):
        return f"turn {at} reads its prompt again: prefix caching is off"
    return f"turn {at} reads its prompt again: the prefix cache kept {100 * reused:.0f} % of the turn before"


def tokens(count: int) -> str:
    """A context length, such as 32K."""
    return f"{count // 1024}K"
