"""Every workload at every concurrency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_deploy.bench.agents import characters_per_token, text_of
from dflash_deploy.bench.figures import Row, Speculation, row_of
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import Limits, Workload
from dflash_deploy.client.endpoint import Endpoint

REQUESTS_PER_CLIENT = 2
"""Requests that each client sends at least, unless their number is set."""


@dataclass(frozen=True)
class Sweep:
    """What is measured. `requests` is the number in one repeat; `None`: each prompt once, at least two per client.

    Before each prompt there are `context` tokens of a conversation.
    """

    workloads: tuple[Workload, ...]
    concurrency: tuple[int, ...]
    limits: Limits
    repeats: int
    requests: int | None = None
    warmup: int | None = None
    context: int = 0

    def requests_of(self, workload: Workload, concurrency: int) -> int:
        """Requests in one repeat."""
        return self.requests or max(len(workload.questions), REQUESTS_PER_CLIENT * concurrency)


def run_sweep(endpoint: Endpoint, sweep: Sweep, speculation: Speculation, *, show: Callable[[Row], None]) -> list[Row]:
    """Measure an endpoint as it is, and show each row as soon as it is measured.

    Raises EndpointError if `sweep.context` is set and the endpoint does not answer.
    """
    rows = []
    characters = int(sweep.context * characters_per_token(endpoint)) if sweep.context else 0
    for workload in sweep.workloads:
        bodies = workload.bodies(endpoint.model, sweep.limits)
        if characters:
            bodies = [lengthened(body, text_of("file", str(number), characters)) for number, body in enumerate(bodies)]
        for concurrency in sweep.concurrency:
            load = measure(
                endpoint,
                bodies,
                concurrency=concurrency,
                requests=sweep.requests_of(workload, concurrency),
                repeats=sweep.repeats,
                warmup=sweep.warmup,
            )
            rows.append(row_of(workload.name, load, speculation))
            show(rows[-1])
    return rows


def lengthened(body: Mapping[str, Any], text: str) -> dict[str, object]:
    """The body of a chat completion whose user has sent a file before, and got an answer."""
    messages = list(body["messages"])
    first = next((place for place, one in enumerate(messages) if one["role"] != "system"), 0)
    before = [{"role": "user", "content": text}, {"role": "assistant", "content": "I have read it."}]
    return {**body, "messages": [*messages[:first], *before, *messages[first:]]}


def with_speedups(drafted: Sequence[Row], plain: Sequence[Row]) -> list[Row]:
    """All rows, each one with a drafter with its speed-up, and before the one without of the same concurrency."""
    bases = {(row.workload, row.concurrency): row.tokens_per_s for row in plain}
    sped = [
        replace(row, speedup=_ratio(row.tokens_per_s, bases.get((row.workload, row.concurrency)))) for row in drafted
    ]
    workloads = list(dict.fromkeys(row.workload for row in (*drafted, *plain)))
    return sorted([*sped, *plain], key=lambda row: (workloads.index(row.workload), row.concurrency))


def _ratio(ours: float, base: float | None) -> float | None:
    return ours / base if base else None
