"""Every workload at every concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_deploy.bench.agents import characters_per_token, measure_agents, shape_for, text_of
from dflash_deploy.bench.figures import Row, Speculation, row_of
from dflash_deploy.bench.load import Load, measure
from dflash_deploy.bench.workload import AGENTS, Limits, Workload
from dflash_deploy.client.endpoint import Endpoint

REQUESTS_PER_CLIENT = 2  # requests that each client sends at least, unless their number is set


@dataclass(frozen=True)
class Sweep:
    """What is measured. `requests` is the number in one repeat; `None`: each prompt once, at least two per client.

    Before each prompt there are `context` tokens of a conversation. Conversations of agents grow to `context`, or to
    `longest` tokens if it is 0.
    """

    workloads: tuple[Workload, ...]
    concurrency: tuple[int, ...]
    limits: Limits
    repeats: int
    requests: int | None = None
    context: int = 0
    longest: int = 0


def run_sweep(endpoint: Endpoint, sweep: Sweep, speculation: Speculation, *, show: Callable[[Row], None]) -> list[Row]:
    """Measure an endpoint as it is, and show each row as soon as it is measured.

    Raises EndpointError if the length of texts must be known and the endpoint does not answer.
    """
    rows = []
    for workload in sweep.workloads:
        for measured in _loads(endpoint, sweep, workload):
            for turn, load in enumerate(measured, 1):
                one = turn if workload.name == AGENTS else None
                rows.append(row_of(workload.name, load, speculation, turn=one))
                show(rows[-1])
    return rows


def _loads(endpoint: Endpoint, sweep: Sweep, workload: Workload) -> Iterator[list[Load]]:
    """The load at each concurrency; of conversations one for each turn."""
    if workload.name == AGENTS:
        shape = shape_for(sweep.context or sweep.longest, sweep.limits.max_tokens)
        for agents in sweep.concurrency:
            yield measure_agents(endpoint, shape, sweep.limits, agents=agents, repeats=sweep.repeats)
        return
    bodies = workload.bodies(endpoint.model, sweep.limits)
    if sweep.context:
        characters = int(sweep.context * characters_per_token(endpoint))
        bodies = [lengthened(body, text_of("file", str(number), characters)) for number, body in enumerate(bodies)]
    for concurrency in sweep.concurrency:
        requests = sweep.requests or max(len(workload.questions), REQUESTS_PER_CLIENT * concurrency)
        yield [measure(endpoint, bodies, concurrency=concurrency, requests=requests, repeats=sweep.repeats)]


def lengthened(body: Mapping[str, Any], text: str) -> dict[str, object]:
    """The body of a chat completion whose user has sent a file before, and got an answer."""
    messages = list(body["messages"])
    first = next((place for place, one in enumerate(messages) if one["role"] != "system"), 0)
    before = [{"role": "user", "content": text}, {"role": "assistant", "content": "I have read it."}]
    return {**body, "messages": [*messages[:first], *before, *messages[first:]]}


def with_speedups(drafted: Sequence[Row], plain: Sequence[Row]) -> list[Row]:
    """All rows, each one with a drafter with its speed-up, and before the one without of the same concurrency."""

    def place(row: Row) -> tuple[str, int, int]:
        return row.workload, row.concurrency, row.turn or 0

    bases = {place(row): row.tokens_per_s for row in plain}
    pairs = ((row, bases.get(place(row))) for row in drafted)
    sped = [replace(row, speedup=row.tokens_per_s / base if base else None) for row, base in pairs]
    workloads = list(dict.fromkeys(row.workload for row in (*drafted, *plain)))
    return sorted([*sped, *plain], key=lambda row: (workloads.index(row.workload), *place(row)[1:]))
