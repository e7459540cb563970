"""The figures that `bench` leaves in a deployment, and what they say of its speed without drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.bench.figures import SIZES
from dflash_deploy.deployment.compose import member_plans
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.errors import BadInput, FileRefused
from dflash_deploy.intake.documents import BenchConditions, BenchFigures, BenchRow, BenchRun, parse_document, read_state
from dflash_deploy.intake.files import MIB, read_argument, shown
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings

LARGEST_FIGURES = 16 * MIB

OF_PLAIN_SPEED = (
    # of one engine it is empty: a run over several measured none of them by itself
    Settings.replicas,
    Settings.tensor_parallel_size,
    Settings.nodes,
    Settings.distributed_executor,
    Settings.model_file,
    Settings.quantization,
    Settings.kv_cache_dtype,
    Settings.attention_backend,
    Settings.enforce_eager,
    Settings.omp_wait_policy,
    Settings.extra_args,
)
"""Settings that change the time of a token without drafts.

MAX_NUM_SEQS and MAX_NUM_BATCHED_TOKENS are not among them. They limit which requests run, and the time is kept by the
number of those that do: rows above the limit that was measured are left out (`rows_below_limit`). `tune` changes both.
"""

DESCRIBING = (
    *SIZES,
    *OF_PLAIN_SPEED,
)
"""Settings that a figure means little without."""

LAST_FIGURES, LAST_BASELINE = "bench.json", "bench-baseline.json"
"""In `.dflash/`: the figures of the last run, and of the last one that measured without speculative decoding."""


def keep_figures(deployment: Deployment, text: str, *, baseline: bool) -> None:
    """Keep the document of a run of `bench`, for `capacity`. Raises OSError if it cannot be written.

    `baseline`: it measured one engine of this deployment without speculative decoding too, which `monitor` compares
    with until the next such run.
    """
    for name in (LAST_FIGURES, LAST_BASELINE) if baseline else (LAST_FIGURES,):
        write_atomically(deployment.make_state() / name, text, mode=PRIVATE)


def last_figures(deployment: Deployment, name: str = LAST_FIGURES) -> BenchRun | None:
    """The figures of the last run; `None` if there was none, or its file was changed."""
    try:
        kept = read_state(deployment.state / name, BenchFigures, limit=LARGEST_FIGURES)
    except FileRefused:
        return None
    return None if kept is None else kept.data


def rows_below_limit(run: BenchRun) -> list[BenchRow]:
    """The rows of a run, less those with more clients than MAX_NUM_SEQS: they measured the wait."""
    written = run.measured.settings.get(Settings.max_num_seqs.name, "")
    most = int(written) if written.isdecimal() else None
    return [row for row in run.rows if most is None or row.concurrency <= most]


@dataclass(frozen=True)
class PlainSpeed:
    """How fast one engine of a deployment is without speculative decoding, as `bench` measured it.

    `tpot_seconds` has the mean time per output token by concurrency; empty if nothing is known. `unfit` says what the
    last figures measured instead; empty if they count, and if there are none.
    """

    tpot_seconds: Mapping[int, float]
    unfit: str = ""


def plain_speed(deployment: Deployment, plan: Plan) -> PlainSpeed:
    """The speed of the last run without drafts, if what it measured is what the plan runs."""
    last = last_figures(deployment, LAST_BASELINE) or last_figures(deployment)
    known = [
        (row.concurrency, row.requests, row.tpot_ms.mean / 1000)
        for row in (rows_below_limit(last) if last else ())
        if row.drafter is False and row.requests and row.tpot_ms and row.tpot_ms.mean
    ]
    if last is None or not known:
        return PlainSpeed({})
    unfit = measured_instead(last.measured, plan)
    return PlainSpeed({}, unfit) if unfit else PlainSpeed({at: _mean(known, at) for at, *_ in known})


def measured_instead(measured: BenchConditions, plan: Plan) -> str:
    """What the half of a run without drafts measured; empty if it is one engine of the plan, as the plan runs it."""
    if measured.baseline_url:
        return f"another endpoint, {measured.baseline_url}"
    here = (plan.profile.name, plan.pair.name, f"{plan.engine.engine} {plan.engine_version}")
    there = (measured.profile, measured.pair, measured.engine)
    named = [text for text, own in zip(there, here, strict=True) if text != own]
    one = next(iter(member_plans(plan)), plan)
    named += [
        f"{field}={field.text(measured.settings) or '(empty)'}"
        for field in OF_PLAIN_SPEED
        if field.text(measured.settings) != field.text(one.values)
    ]
    if measured.cores != len(one.settings.dflash_cores):
        named.append(f"an engine on {measured.cores or 'all'} cores")
    return ", ".join(named)


def _mean(known: Sequence[tuple[int, int, float]], concurrency: int) -> float:
    """The mean over the requests of all workloads at a concurrency."""
    here = [(requests, seconds) for at, requests, seconds in known if at == concurrency]
    return sum(requests * seconds for requests, seconds in here) / sum(requests for requests, _ in here)


def figures_in(path: Path) -> BenchRun:
    """The figures in a file. Raises BadInput if it is not one of `bench`."""
    hint = "name a file that `bench --save` wrote"
    try:
        return parse_document(read_argument(path, limit=LARGEST_FIGURES), BenchFigures, limit=LARGEST_FIGURES).data
    except FileRefused as problem:
        raise BadInput(f"{shown(path)} cannot be read: {problem.message}", hint=hint) from None
    except Invalid as problem:
        raise BadInput(f"{shown(path)} {problem}", hint=hint) from None
