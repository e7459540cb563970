"""`bench`: measure the endpoint, beside a run without speculative decoding and beside published figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import (
    HERE,
    Baseline,
    BaselineUrl,
    Concurrency,
    Directory,
    Json,
    KeyFile,
    MaxTokens,
    MinSpeedup,
    MtpHead,
    Prompts,
    Repeats,
    Requests,
    Temperature,
    Thinking,
    Warmup,
    Workload,
    concurrency_of,
)
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Beside, Row, Speculation
    from dflash_deploy.operations.bench import Benchmark, BenchTarget
    from dflash_deploy.operations.bench_agents import AgentsBenchmark


CONCURRENCY, LIMIT = "1,2,4,8", 256

MOST_AGENTS = 256
"""Conversations whose histories this command keeps in memory."""

Url = Annotated[str | None, typer.Option(help="An endpoint without a deployment, such as http://box:8000.")]
Name = Annotated[str | None, typer.Option(help="Name of the model at --url; else the first one.")]
Save = Annotated[Path | None, typer.Option(help="Write the figures as JSON.", dir_okay=False)]
Shared = Annotated[
    Path | None,
    typer.Option(help="Write the figures for publication: no host names, API keys, paths or prompts.", dir_okay=False),
]
Page = Annotated[Path | None, typer.Option(help="Write a report with plots, one HTML file.", dir_okay=False)]
Agents = Annotated[
    int | None, typer.Option(min=1, max=MOST_AGENTS, help="Measure conversations of this many coding agents instead.")
]
Turns = Annotated[int | None, typer.Option(min=2, max=1000, help="Turns of --agents; default: what fits, 20 at most.")]
Context = Annotated[
    int | None, typer.Option(min=1, help=f"Tokens that --agents grow to; default: {Settings.max_model_len}.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Replay recorded requests instead, from a JSONL file in Mooncake's format; - is standard input.",
        dir_okay=False,
        allow_dash=True,
    ),
]
Restarts = Annotated[float, typer.Option(min=1, help="As for `up`, for the restarts of --baseline and --mtp.")]


@command(
    starts_over=True,
    examples=("bench --baseline --share result.json", "bench --agents 4 --baseline --report agents.html"),
)
def bench(
    directory: Directory = HERE,
    workload: Workload = "",
    prompts: Prompts = None,
    concurrency: Concurrency = CONCURRENCY,
    requests: Requests = None,
    repeats: Repeats = 1,
    warmup: Warmup = None,
    max_tokens: MaxTokens = LIMIT,
    temperature: Temperature = 0.0,
    thinking: Thinking = False,
    baseline: Baseline = False,
    baseline_url: BaselineUrl = None,
    mtp: MtpHead = None,
    url: Url = None,
    key_file: KeyFile = None,
    model: Name = None,
    agents: Agents = None,
    turns: Turns = None,
    context: Context = None,
    trace: Trace = None,
    min_speedup: MinSpeedup = None,
    save: Save = None,
    share: Shared = None,
    report: Page = None,
    patience: Restarts = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance. Workloads run at each concurrency; else agents, or a trace."""
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.bench import bench as run_bench
    from dflash_deploy.operations.bench import deployed, remote

    numbers = concurrency_of(concurrency)
    others = (workload, prompts, requests, warmup, mtp, min_speedup, share, concurrency != CONCURRENCY)
    _check_agents(agents is not None, sizes=bool(turns or context), others=any(others))
    _check_trace(trace is not None, others=agents is not None or any(others) or max_tokens != LIMIT)
    by_context = _measures_by_context(agents, turns, context, trace)
    _check_results(min_speedup, (save, share, report), compared=bool(baseline or baseline_url))
    _check_url(url, named=bool(key_file or model), restarts=bool(baseline or mtp))
    target: BenchTarget = (
        deployed(directory, baseline=baseline, baseline_url=baseline_url, mtp=mtp, patience=patience)
        if url is None
        else remote(url, key_in(key_file), model, baseline_url=baseline_url)
    )
    limits = Limits(max_tokens, temperature, thinking)
    if by_context is not None:
        found = by_context(target, limits=limits, repeats=repeats, save=save, report=report, reporter=terminal())
        return _by_context(found, (save, report))
    load, reporter = os.getloadavg()[0], terminal()
    with reporter.working("measuring"):
        done = run_bench(
            target,
            workloads=[name.strip() for name in workload.split(",") if name.strip()],
            prompts=prompts,
            concurrency=numbers,
            limits=limits,
            requests=requests,
            repeats=repeats,
            warmup=warmup,
            min_speedup=min_speedup,
            save=save,
            share=share,
            report=report,
            reporter=reporter,
        )
    shown = (*_shown(done, load), *(f"wrote {file}" for file in (save, share, report) if file))
    return Report(done.document(), shown, failure=done.failure)


def _measures_by_context(
    agents: int | None, turns: int | None, context: int | None, trace: Path | None
) -> Callable[..., AgentsBenchmark] | None:
    """What measures agents or a trace; `None` for workloads. Raises BadInput for a trace that cannot be replayed."""
    if trace is not None:
        from dflash_deploy.bench.trace import read_trace
        from dflash_deploy.operations.bench_agents import bench_trace

        return partial(bench_trace, trace=read_trace(trace))
    if agents is not None:
        from dflash_deploy.operations.bench_agents import bench_agents

        return partial(bench_agents, agents=agents, turns=turns, context=context)
    return None


def _check_agents(agents: bool, *, sizes: bool, others: bool) -> None:
    """Refuse options that do not belong together: `sizes` of conversations, `others` of the other measurement."""
    if sizes and not agents:
        raise BadInput("--turns and --context belong to --agents", hint="add --agents 4")
    if agents and others:
        raise BadInput(
            "--agents has its own workload",
            hint="it goes with --turns, --context, --repeats, --max-tokens, --baseline, --save and --report",
        )


def _check_trace(trace: bool, *, others: bool) -> None:
    if trace and others:
        raise BadInput("--trace has its own requests", hint="it goes with --repeats, --baseline, --save and --report")


def _check_results(min_speedup: float | None, files: Sequence[Path | None], *, compared: bool) -> None:
    """Refuse a required speed-up of nothing, and files that cannot be written, before minutes of measurement."""
    from dflash_deploy.deployment.files import check_output

    if min_speedup is not None and not compared:
        raise BadInput("--min-speedup needs a run to compare with", hint="add --baseline or --baseline-url")
    for file in filter(None, files):
        check_output(file)


def _by_context(done: AgentsBenchmark, files: Sequence[Path | None]) -> Report:
    """The figures of conversations or of a trace."""
    from dflash_deploy.bench.agent_figures import STAGE_COLUMNS, STAGE_UNITS

    shown = list[Shown]()
    for place, (_, rows) in done.tables().items():
        grid = Grid(place, *STAGE_COLUMNS)
        for row in rows:
            grid.add_row(*row)
        shown += [grid, ""]
    verdicts = (f"verdict    {line}" for line in done.verdicts)
    return Report(
        done.document(),
        (*shown, STAGE_UNITS, *verdicts, *(f"wrote {file}" for file in files if file)),
        failure=done.failure,
    )


def _check_url(url: str | None, *, named: bool, restarts: bool) -> None:
    """Refuse options that do not belong together: `named` has a key or a model, `restarts` needs a deployment."""
    if url is None and named:
        raise BadInput("--key-file and --model belong to --url", hint="add --url, or leave them out")
    if url is not None and restarts:
        raise BadInput(
            "an endpoint without a deployment cannot be restarted",
            hint="name a second one without speculative decoding: --baseline-url",
        )


def _shown(done: Benchmark, load: float) -> Iterator[Shown]:
    """`load`: the load average before the run."""
    # --help needs no figures
    from dflash_deploy.bench.verdict import cautions, verdicts

    yield _table(done.rows)
    yield ""
    if any(row.speculation == "mtp" for row in done.rows):
        yield side_by_side(done.rows)
        yield ""
    yield "times are p50 / p99; length is the mean acceptance length"
    yield from _positions(done.rows)
    yield from weak_workloads(done.rows)
    yield from cautions(done.rows, load, os.cpu_count() or 1)
    if not done.published:
        yield "published  nothing in the catalog for this machine, these models, workloads and concurrency"
    else:
        yield "published for this machine and these models (tokens/s; other prompts, lengths and engines)"
        yield _beside(done.published)
    yield from verdicts(done.rows)


def _table(rows: Sequence[Row]) -> Shown:
    drawn = Grid(
        "workload", "concurrency", "drafter", "tokens/s", "speed-up", "req/s", "TTFT ms", "TPOT ms", "ITL ms", "length"
    )  # fmt: skip
    for row in rows:
        drawn.add_row(
            row.workload,
            str(row.concurrency),
            _made(row),
            f"{row.tokens_per_s:.1f}",
            f"{row.speedup:.2f}" if row.speedup else "-",
            f"{row.requests_per_s:.2f}",
            *(
                f"{times.p50:.1f} / {times.p99:.1f}" if times else "-"
                for times in (row.ttft_ms, row.tpot_ms, row.itl_ms)
            ),
            f"{row.acceptance_length:.2f}" if row.acceptance_length else "-",
        )
    return drawn


def side_by_side(rows: Sequence[Row]) -> Shown:
    """Tokens/s and speed-up of each way to make drafts, in one line for each workload and concurrency."""
    kinds: Mapping[Speculation, str] = {"off": "no drafts", "mtp": "MTP head", "dflash": "DFlash"}
    drawn = Grid("workload", "concurrency", *kinds.values())
    found = {(row.workload, row.concurrency, row.speculation): row for row in rows}
    for workload, concurrency in dict.fromkeys((row.workload, row.concurrency) for row in rows):
        cells = (found.get((workload, concurrency, kind)) for kind in kinds)
        drawn.add_row(workload, str(concurrency), *map(_speed, cells))
    return drawn


def _speed(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row.tokens_per_s:.1f}" + (f" ({row.speedup:.2f}x)" if row.speedup else "")


def _made(row: Row) -> str:
    """Draft tokens per step, and what makes them."""
    if row.speculation in {"off", "unknown"}:
        return "off" if row.speculation == "off" else "?"
    made = str(row.draft_tokens or "on")
    return f"MTP {made}" if row.speculation == "mtp" else made


def _positions(rows: Sequence[Row]) -> Iterator[str]:
    """Acceptance by position, of each workload at its lowest concurrency: it hardly depends on that."""
    seen = set()
    for row in rows:
        if row.acceptance_by_position and (row.workload, row.speculation) not in seen:
            seen.add((row.workload, row.speculation))
            shares = " ".join(f"{100 * share:.0f}" for share in row.acceptance_by_position)
            named = f"{row.workload}, MTP" if row.speculation == "mtp" else row.workload
            yield f"{named}: of 100 drafts, accepted up to position 1, 2, …: {shares}"


def weak_workloads(rows: Sequence[Row]) -> Iterator[str]:
    """The workloads of which few draft tokens are accepted, and what helps."""
    # --help needs no grades
    from dflash_deploy.checks.acceptance import WEAK_BELOW, WEAK_HINT

    drafted = [row for row in rows if row.speculation == "dflash" and row.acceptance_length]
    weak = dict.fromkeys(row.workload for row in drafted if (row.acceptance_length or 0) < WEAK_BELOW)
    if weak:
        yield f"acceptance length below {WEAK_BELOW:g}: {', '.join(weak)}"
        yield f"hint: {WEAK_HINT}"


def _beside(besides: Sequence[Beside]) -> Shown:
    drawn = Grid("published", "concurrency", "draft", "off", "DFlash", "length", "here", "draft", "off", "DFlash",
                  "length", "source")  # fmt: skip
    for row in besides:
        theirs = (row.draft_tokens, row.plain, row.dflash, row.acceptance_length)
        ours = (row.ours_draft_tokens, row.ours_plain, row.ours_dflash, row.ours_acceptance_length)
        drawn.add_row(
            row.workload, str(row.concurrency), *map(_cell, theirs), row.ours_workload, *map(_cell, ours), row.source
        )
    return drawn


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
