"""`logs` and `explain`: the log of an engine, and its cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import Profile, engines
from dflash_deploy.cli.planned import taken_over
from dflash_deploy.cli.shown import Report, visible
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.errors import BadInput, where_explained
from dflash_deploy.redact import redact_by_shape

if TYPE_CHECKING:
    from dflash_deploy.operations.explain import ExplainedLog


@command(examples=("logs --follow", "logs --bundle report.tar.gz"), json=False)
def logs(
    file: Annotated[
        Path | None, typer.Argument(help="With --bundle: the file to write; else one in the current directory.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C or the engine's end.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines, of each process.")
    ] = None,
    bundle: Annotated[
        bool,
        typer.Option("--bundle", help="Pack log, plan, doctor, settings, versions as tar.gz (0600), without secrets."),
    ] = False,
    *,
    directory: Path,
) -> Report:
    """Print the engine's log, or pack a bundle for a report. Secrets are redacted."""
    if bundle:
        from dflash_deploy.operations.bundle import bundle as run_bundle

        packed = run_bundle(directory, file)
        shown = (
            f"bundle    {packed.file}",
            f"holds     {', '.join(packed.members)}",
            "secrets   replaced; still, read it before you give it to others",
        )
        return Report(shown=shown)
    if file is not None:
        raise BadInput(f"`{file}`: a file goes with --bundle", hint=f"`dflash-deploy logs --bundle {quote(str(file))}`")
    if follow:
        # Ctrl-C is how following ends
        with suppress(KeyboardInterrupt):
            _print(directory, tail, follow=True)
    else:
        _print(directory, tail, follow=False)
    return Report()


def _print(directory: Path, tail: int | None, *, follow: bool) -> None:
    from dflash_deploy.operations.logs import log

    for line in log(directory, tail=tail, follow=follow):
        typer.echo(visible(line))
        if lost_output() is not None:
            return


CAUSES = {"unknown": "unknown: the decisive lines are below", "none": "the log shows no failure"}
NO_ENGINE = "none found: no line is one of vLLM, SGLang or llama.cpp, so this may not be the log of an engine"


@command(examples=("explain engine.log", "explain --command run.sh --profile rtx-3090"))
def explain(
    file: Annotated[Path | None, typer.Argument(help="The log, or - for standard input.", show_default=False)] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="FILE|URL|-", help="A launch command or recipe instead of a log. Runs nothing of it."
        ),
    ] = None,
    profile: Profile = None,
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", help="Exit code of the process, if known; a signal is negative.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine that wrote the log: vllm, sglang, llamacpp, or a release of the catalog.",
            autocompletion=engines,
        ),
    ] = None,
    issue: Annotated[bool, typer.Option("--issue", help="Print a text for an issue, secrets redacted.")] = False,
) -> Report:
    """Explain the log of any engine: cause, evidence, fix. Needs no deployment.

    `--command`: what is wrong with a launch command or recipe, on the hardware of --profile.
    """
    from dflash_deploy.operations.explain import explain_log

    if file is None and command is None and not sys.stdin.isatty():
        file = Path("-")
    if (file is None) == (command is None):
        raise BadInput("explain reads a log or --command, not both", hint="`dflash-deploy explain engine.log`")
    if command is not None:
        return _recipe(command, profile, engine)
    assert file is not None  # noqa: S101 - one of the two is given
    found = explain_log(file, exit_code=exit_code, engine=engine)
    lines = tuple(f"{name:9} {redact_by_shape(text)}" for name, text in _lines(found) if text)
    return Report(found.document(), (found.issue(),) if issue else lines)


def _recipe(source: str, profile: str | None, engine: str | None) -> Report:
    """Each item of a recipe with its fate, and the findings of the rules about the plan with it."""
    from dflash_deploy.operations.described import with_models
    from dflash_deploy.operations.foreign import plan_from, recipe_text
    from dflash_deploy.plan.result import Choice

    found = plan_from(recipe_text(source), Choice(profile=profile, engine=engine), find=with_models)
    problem = [f"plan     none: {found.failure.message}", f"         {found.failure.hint}"] if found.failure else []
    findings = found.plan.findings if found.plan else ()
    return Report(found, (*taken_over(found), *problem), findings)


def _without_diagnosis(found: ExplainedLog) -> str:
    """What is said if no failure is named."""
    if not found.lines_read:
        return "the log is empty"
    return NO_ENGINE if found.verdict == "none" and not found.engine else CAUSES[found.verdict]


def _lines(found: ExplainedLog) -> Iterator[tuple[str, str | None]]:
    known = found.failure
    yield "engine", found.engine_title or "not recognised"
    if known is None:
        yield "cause", _without_diagnosis(found)
    else:
        yield "cause", known.cause if found.verdict == "named" else f"{known.cause} (likely)"
        yield "fix", known.do
        yield "failure", where_explained(known.id)
        yield "source", known.source
    yield from (("evidence" if number == 0 else "", line) for number, line in enumerate(found.lines))
    yield from (("besides", text) for text in found.circumstances)
    yield "costs", where_explained(*(cost.id for cost in found.costs)) if found.costs else None
    yield from (("unknown", text) for text in found.not_known)
    if not found.lines_read or (found.verdict == "none" and not found.engine):
        yield "next", "write both outputs of the engine into it, as in `docker logs CONTAINER > engine.log 2>&1`"
    if found.verdict == "unknown" or (known is not None and known.part):
        yield "next", "the same with --issue prints a text for an issue"
