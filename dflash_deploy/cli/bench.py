"""`bench`: measure the endpoint, beside plain decoding and beside what others published."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.remote import KeyFile
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, table, verb
from dflash_deploy.errors import BadInput, BenchmarkMissed, DeployError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_deploy.bench.figures import Row
    from dflash_deploy.bench.published import Beside
    from dflash_deploy.cli.measured import Deployed, Remote

MOST_STREAMS = 4096


@verb
def bench(
    directory: Directory = HERE,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help="code, maths, chat, prose, vision, own, all; gsm8k, math500, humaneval, mbpp, mt-bench. With commas.",
        ),
    ] = "",
    prompts: Annotated[
        Path | None, typer.Option(help="A JSONL file with `prompt` or `messages` in each line.", dir_okay=False)
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Streams at the same time, one measurement for each.")] = "1,2,4,8",
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of one repeat; else each prompt once, and two for each stream.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 1,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests before each measurement; else one for each stream.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, where a prompt names no length.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Of sampling; 0 is greedy.")] = 0.0,
    thinking: Annotated[bool, typer.Option("--thinking", help="Let the model think, where its template asks.")] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also plain decoding: the engine restarts without its drafter and back.")
    ] = False,
    baseline_url: Annotated[
        str | None, typer.Option(help="Also plain decoding, of a second endpoint with the same key and model.")
    ] = None,
    mtp: Annotated[
        int | None,
        typer.Option(min=1, help="Also the target's own MTP head, with so many draft tokens: one more restart."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="An endpoint without a deployment, such as http://box:8000.")] = None,
    key_file: KeyFile = None,
    model: Annotated[str | None, typer.Option(help="Name of the model at --url; else the first it serves.")] = None,
    min_speedup: Annotated[
        float | None, typer.Option(min=0, help="Fail with code 7 where a speed-up is below this.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the figures as JSON.", dir_okay=False)] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a report with plots, one HTML file.", dir_okay=False)
    ] = None,
    blocks: Annotated[bool, typer.Option(help="Print each measurement as `vllm bench serve` does.")] = True,
    patience: Annotated[
        float, typer.Option(min=1, help="As for `up`, for the restarts of --baseline and --mtp.")
    ] = 900,
    as_json: Json = False,
) -> Report:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance over a number of streams."""
    from dflash_deploy.bench.sweep import Sweep, with_speedups
    from dflash_deploy.bench.workload import Limits, choose
    from dflash_deploy.cli.measured import deployed, finished, remote

    numbers = numbers_of(concurrency)
    if min_speedup is not None and not (baseline or baseline_url):
        raise BadInput("--min-speedup needs plain decoding to compare with", hint="add --baseline or --baseline-url")
    for file in (save, report):
        check_place(file)
    subject: Deployed | Remote
    if url is None:
        if key_file or model:
            raise BadInput("--key-file and --model belong to --url", hint="add --url, or leave them out")
        subject = deployed(directory, baseline=baseline, baseline_url=baseline_url, mtp=mtp, patience=patience)
    else:
        if baseline or mtp:
            raise BadInput(
                "an endpoint without a deployment cannot be restarted",
                hint="name a second one that decodes plainly: --baseline-url",
            )
        subject = remote(url, key_file, model, baseline_url=baseline_url)
    names = [name.strip() for name in workload.split(",") if name.strip()]
    sweep = Sweep(
        workloads=tuple(choose(names, prompts, subject.pair)),
        concurrency=numbers,
        limits=Limits(max_tokens, temperature, thinking),
        repeats=repeats,
        requests=requests,
        warmup=warmup,
    )
    drafted, plain = subject.measure(sweep, _progress)
    rows = with_speedups(drafted, plain)
    data, besides = finished(subject, sweep, rows, save=save, report=report)
    shown = (*_shown(rows, besides, blocks=blocks), *(f"wrote {file}" for file in (save, report) if file))
    return Report(data, shown, failure=missed(rows, min_speedup, ours=subject.plan is not None))


def numbers_of(written: str) -> tuple[int, ...]:
    """The numbers of streams, each once, in rising order."""
    try:
        numbers = {int(part) for part in written.split(",")}
    except ValueError:
        numbers = set()
    if not numbers or not all(1 <= number <= MOST_STREAMS for number in numbers):
        raise BadInput(f"--concurrency {written} names no numbers of streams", hint="like this: --concurrency 1,2,4,8")
    return tuple(sorted(numbers))


def check_place(file: Path | None) -> None:
    """What is measured for minutes must have a place to go."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise BadInput(f"{file} cannot be written: there is no directory {folder}", hint="create it first")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{file} cannot be written: {folder} is not yours to write in", hint="name another place")


def _progress(row: Row) -> None:
    """A line on standard error for each measurement."""
    from dflash_deploy.bench.figures import part, streams

    failed = f", {row.failed} failed" if row.failed else ""
    made = part(row.drafter, mtp=row.mtp)
    note(f"{row.workload}, {streams(row.concurrency)}, {made}: {row.tokens_per_s:.1f} tokens/s{failed}")


def _shown(rows: Sequence[Row], besides: Sequence[Beside], *, blocks: bool) -> Iterator[RenderableType]:
    from dflash_deploy.bench.block import block
    from dflash_deploy.bench.figures import part, streams

    if blocks:
        for row in rows:
            yield f"{row.workload}, {streams(row.concurrency)}, {part(row.drafter, mtp=row.mtp)}"
            yield block(row)
            yield ""
    yield _table(rows)
    yield ""
    yield "times are p50 / p99; length is the mean acceptance length"
    yield from _positions(rows)
    if not besides:
        yield "published  nothing in the catalog for this machine, these models, workloads and numbers of streams"
    else:
        yield "published for this machine and these models (tokens/s; other prompts, lengths and engines)"
        yield _beside(besides)


def _table(rows: Sequence[Row]) -> RenderableType:
    drawn = table(
        "workload", "streams", "drafter", "tokens/s", "speed-up", "req/s", "TTFT ms", "TPOT ms", "ITL ms", "length"
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


def _made(row: Row) -> str:
    """Draft tokens of a step, and by what they were made."""
    if row.drafter is None:
        return "?"
    made = str(row.draft_tokens or "on") if row.drafter else "off"
    return f"MTP {made}" if row.mtp else made


def _positions(rows: Sequence[Row]) -> Iterator[str]:
    """Acceptance by position, of each workload under the fewest streams: it hardly depends on their number."""
    seen = set()
    for row in rows:
        if row.acceptance_by_position and (row.workload, row.mtp) not in seen:
            seen.add((row.workload, row.mtp))
            shares = " ".join(f"{100 * share:.0f}" for share in row.acceptance_by_position)
            named = f"{row.workload}, MTP" if row.mtp else row.workload
            yield f"{named}: of 100 drafts, accepted up to position 1, 2, …: {shares}"


def _beside(besides: Sequence[Beside]) -> RenderableType:
    drawn = table("published", "streams", "draft", "plain", "DFlash", "length", "here", "draft", "plain", "DFlash",
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


def _contradicted(rows: Sequence[Row], *, ours: bool) -> DeployError | None:
    """The counters say otherwise. Only of a deployment of `ours` is it known that drafts would be counted."""
    for row in rows:
        if row.counted is None:
            continue
        if row.drafter and ours and not row.counted.drafts:
            return BenchmarkMissed(
                "no draft was made: what runs decodes plainly",
                hint="`dflash-deploy up` applies what .env says; then look for 'speculative' in `dflash-deploy logs`",
            )
        if row.drafter is False and row.counted.drafts:
            return BenchmarkMissed(
                f"what was measured as plain decoding made {row.counted.drafts} drafts",
                hint="`dflash-deploy up` applies what .env says; --baseline-url must name an engine without a drafter",
            )
    return None


def missed(rows: Sequence[Row], min_speedup: float | None, *, ours: bool) -> DeployError | None:
    """What makes the run a failure: an answer that did not come, a drafter or none against what was said, slowness."""
    failed = [row for row in rows if row.failed]
    if failed:
        count, asked = sum(row.failed for row in failed), sum(row.requests + row.failed for row in rows)
        return BenchmarkMissed(
            f"{count} of {asked} requests failed: {failed[0].problem}",
            hint="the other figures count what was answered; `dflash-deploy logs` shows the engine's side",
        )
    if (contradicted := _contradicted(rows, ours=ours)) is not None:
        return contradicted
    sped = [row for row in rows if row.speedup is not None and not row.mtp]
    slow = [row for row in sped if min_speedup is not None and (row.speedup or 0.0) < min_speedup]
    if slow:
        worst = min(slow, key=lambda row: row.speedup or 0.0)
        return BenchmarkMissed(
            f"{worst.workload}, streams {worst.concurrency}: {worst.speedup:.2f} times as fast as plain decoding, "
            f"not {min_speedup:g}",
            hint="fewer draft tokens help where many streams run: DFLASH_NUM_SPEC_TOKENS in .env",
        )
    return None
