"""`bench`: measure the endpoint, beside a run without speculative decoding and beside published figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import (
    Baseline,
    BaselineUrl,
    Concurrency,
    Context,
    KeyFile,
    MaxTokens,
    MinSpeedup,
    MtpHead,
    Prompts,
    Repeats,
    Requests,
    Temperature,
    Thinking,
    Workload,
    concurrency_of,
)
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Beside, Row, Spread
    from dflash_deploy.operations.bench import Benchmark

Url = Annotated[str | None, typer.Option(help="An endpoint without a deployment, such as http://box:8000.")]
Name = Annotated[str | None, typer.Option(help="Name of the model at --url; else the first one.")]
Save = Annotated[Path | None, typer.Option(help="Write the figures as JSON.", dir_okay=False)]
Page = Annotated[Path | None, typer.Option(help="Write a report with plots, one HTML file.", dir_okay=False)]


@command(
    starts_over=True,
    examples=("bench --baseline --report bench.html", "bench --workload agents --concurrency 4 --baseline"),
)
def bench(
    workload: Workload = "",
    prompts: Prompts = None,
    concurrency: Concurrency = "1,2,4,8",
    requests: Requests = None,
    repeats: Repeats = 1,
    context: Context = 0,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    thinking: Thinking = False,
    baseline: Baseline = False,
    baseline_url: BaselineUrl = None,
    mtp: MtpHead = None,
    url: Url = None,
    key_file: KeyFile = None,
    model: Name = None,
    min_speedup: MinSpeedup = None,
    save: Save = None,
    report: Page = None,
    *,
    directory: Path,
) -> Report:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance. Each workload runs at each concurrency."""
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.bench import bench as run_bench
    from dflash_deploy.operations.bench import deployed, remote

    numbers = concurrency_of(concurrency)
    _check_results(min_speedup, (save, report), compared=bool(baseline or baseline_url))
    _check_url(url, named=bool(key_file or model), restarts=bool(baseline or mtp))
    target = (
        deployed(directory, baseline=baseline, baseline_url=baseline_url, mtp=mtp)
        if url is None
        else remote(url, key_in(key_file), model, baseline_url=baseline_url)
    )
    load, reporter = os.getloadavg()[0], terminal()
    with reporter.working("measuring"):
        done = run_bench(
            target,
            workloads=[name.strip() for name in workload.split(",") if name.strip()],
            prompts=prompts,
            concurrency=numbers,
            limits=Limits(max_tokens, temperature, thinking),
            requests=requests,
            repeats=repeats,
            context=context,
            min_speedup=min_speedup,
            save=save,
            report=report,
            reporter=reporter,
        )
    shown = (*_shown(done, load), *(f"wrote {file}" for file in (save, report) if file))
    return Report(done, shown, failure=done.failure)


def _check_results(min_speedup: float | None, files: Sequence[Path | None], *, compared: bool) -> None:
    """Refuse a required speed-up of nothing, and files that cannot be written, before minutes of measurement."""
    from dflash_deploy.deployment.files import check_output

    if min_speedup is not None and not compared:
        raise BadInput("--min-speedup needs a run to compare with", hint="add --baseline or --baseline-url")
    for file in filter(None, files):
        check_output(file)


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

    for talks in (False, True):
        if rows := [row for row in done.rows if (row.turn is not None) is talks]:
            yield _table(rows, talks=talks)
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
        slowed = dict.fromkeys(one.condition for one in done.published if one.condition)
        yield from (f"slowed     below a published figure, and {condition}" for condition in slowed)
    yield from verdicts(done.rows)


def _table(rows: Sequence[Row], *, talks: bool) -> Shown:
    """A line for each row; `talks` are conversations, with a line for each turn."""
    first, last = (["turn"], ["prompt", "cached"]) if talks else ([], ["req/s", "TPOT ms", "ITL ms"])
    drawn = Grid("workload", "concurrency", *first, "drafter", "tokens/s", "speed-up", "TTFT ms", "length", *last)
    for row in rows:
        prompt = f"{row.input_tokens / row.requests:,.0f}" if row.requests else "-"
        cached = "-" if row.cached_share is None else f"{100 * row.cached_share:.0f} %"
        drawn.add_row(
            row.workload,
            str(row.concurrency),
            *([str(row.turn)] if talks else []),
            _made(row),
            f"{row.tokens_per_s:.1f}",
            f"{row.speedup:.2f}" if row.speedup else "-",
            _times(row.ttft_ms),
            f"{row.acceptance_length:.2f}" if row.acceptance_length else "-",
            *((prompt, cached) if talks else (f"{row.requests_per_s:.2f}", _times(row.tpot_ms), _times(row.itl_ms))),
        )
    return drawn


def _times(times: Spread | None) -> str:
    return f"{times.p50:.1f} / {times.p99:.1f}" if times else "-"


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
