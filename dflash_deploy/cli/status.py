"""`status`: what is true of the deployment now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, option_of, terminal
from dflash_deploy.cli.options import DAY, KeyFile, Served, Url, seconds_of
from dflash_deploy.cli.shown import Report, visible
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.errors import BadInput, where_explained

if TYPE_CHECKING:
    from dflash_deploy.operations.status import EndpointStatus, History, Status
    from dflash_deploy.startup.watch import Window

LONGEST_PAST = 366 * DAY  # seconds
LONGEST_PAUSE = 86_400  # seconds between two repeats of --watch: a day


@command(examples=("status", "status --since 2h"))
def status(
    every: Annotated[
        float | None,
        typer.Option("--watch", min=1, max=LONGEST_PAUSE, help="Repeat after N seconds (2 if left out) until Ctrl-C."),
    ] = None,
    looks: Annotated[int | None, typer.Option(min=1, help="Stop --watch after N polls.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Show the events of this time instead, such as 2h or 7d."),
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    model: Served = "",
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Report whether the engine really answers. It is asked for one generation."""
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.status import history, status_url, watch
    from dflash_deploy.operations.status import status as run_status

    if url is not None:
        if since is not None or every is not None:
            raise BadInput("--url asks another endpoint", hint="leave out --since and --watch")
        with terminal().working("asking the endpoint"):
            asked = status_url(url, key_in(key_file), model=model)
        return Report(asked, tuple(_answers(asked)))
    if key_file or model:
        raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
    if since is not None:
        if every is not None:
            raise BadInput("--since shows the past of the deployment", hint="leave out --watch")
        past = history(directory, seconds_of("--since", since, most=LONGEST_PAST))
        return Report(past, tuple(_past(past)))
    if every is None:
        with terminal().working("asking the engine"):
            found = run_status(directory)
        return Report(found, tuple(_shown(found, option_of(directory))))
    if as_json:
        raise BadInput("--watch and --json exclude each other", hint="run `dflash-deploy status --json` in a loop")
    # Ctrl-C is how it ends
    with suppress(KeyboardInterrupt), watch(directory) as watched:
        typer.echo(f"{'time':8}  {'state':15}  running  waiting  tokens/s  length  cache")
        for window in watched.windows(every, looks):
            typer.echo(visible(watched.redact(_window(window))))
            if lost_output() is not None:
                break
    return Report()


def _window(window: Window) -> str:
    """A line of --watch."""

    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        f"{datetime.now():%H:%M:%S}  {window.state:15}  {figure(window.running, 'd'):>7}  "
        f"{figure(window.waiting, 'd'):>7}  {figure(window.tokens_per_second, '.1f'):>8}  "
        f"{figure(window.acceptance_length, '.2f'):>6}  {figure(window.cache, '.0%'):>5}  {window.remark}"
    ).rstrip()


def _past(past: History) -> Iterator[str]:
    for one in past.events:
        yield f"{one.at:%Y-%m-%d %H:%M:%S} UTC  {one.event:11} {': '.join(filter(None, (one.command, one.text)))}"
    if not past.events:
        yield f"nothing since {past.since:%Y-%m-%d %H:%M:%S} UTC"


def _answers(found: EndpointStatus) -> Iterator[str]:
    """What an endpoint without a deployment says."""
    length = found.acceptance_length
    lines = (
        *_of_answer(found),
        ("endpoint", found.endpoint),
        ("model", found.model),
        ("drafts", None if length is None else f"acceptance length {length:.2f} since the start"),
    )
    yield from (f"{name:9} {text}" for name, text in lines if text)


def _shown(found: Status, there: str) -> Iterator[str]:
    """A line for each thing that is known, the state and its cause first."""
    lines = [*_state(found, there), *_figures(found)]
    if found.door is not None:
        lines.append(("door", ", ".join(filter(None, (found.door.state, found.door.process)))))
    yield from (f"{name:9} {text}" for name, text in lines if text)


def _state(found: Status, there: str) -> Iterator[tuple[str, str | None]]:
    yield from _of_answer(found, there)
    yield "failure", found.failure and where_explained(found.failure)
    yield "rank", None if found.rank is None else f"{found.rank} of several machines"
    yield "settings", found.instead


def _of_answer(answered: Status | EndpointStatus, there: str = "") -> Iterator[tuple[str, str | None]]:
    took = f", one generation in {answered.seconds:.2f} s" if answered.seconds is not None else ""
    sleeps = ": the engine has ended, and the next request starts it" if answered.state == "asleep" else ""
    start = f": no engine runs; `dflash-deploy up{there}` starts it" if answered.state == "absent" else ""
    yield "state", f"{answered.state}{took}{start}{sleeps}"
    yield "cause", answered.problem or answered.cause
    yield "fix", answered.do


def _figures(found: Status) -> Iterator[tuple[str, str | None]]:
    length = found.acceptance_length
    process = f"{found.engine}, " if found.engine else ""
    yield "endpoint", found.endpoint
    yield "model", found.model
    yield "engine", f"{process}runtime {found.runtime}"
    yield "ended", None if found.exit_code is None else f"with exit code {found.exit_code}"
    yield "restarts", str(found.restarts or "")
    yield "drafts", None if length is None else f"acceptance length {length:.2f} since the start"
    yield "memory", None if found.memory_gib is None else f"{found.memory_gib} GiB"
    yield "GPU", found.gpu_memory_gib and f"{found.gpu_memory_gib} GiB used"
    yield "costs", where_explained(*found.costs.split(", ")) if found.costs else None
