"""`up`, `run`, `down`, `restart` and `rollback`: the engine starts, follows its settings, and stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import Patience, is_asked_on_terminal, size_of
from dflash_deploy.cli.shared import HERE, place_of_new
from dflash_deploy.cli.shown import Report, visible
from dflash_deploy.errors import DeployError, EngineNotReady
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash_deploy.operations.up import Started
    from dflash_deploy.plan.result import Plan


@command(changes=True, examples=("up", "up --fix --patience 1800"))
def up(
    patience: Patience = PATIENCE,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Write the safe fix of a known failure into .env and retry, once."),
    ] = False,
    ask_engine: Annotated[
        bool,
        typer.Option(
            "--ask-engine/--no-ask-engine",
            help="Before weights are fetched, let the engine make its configuration from config.json.",
        ),
    ] = True,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Without a deployment, write the default for this machine; never prompt."),
    ] = False,
    *,
    directory: Path,
    as_json: bool,
    json_stream: bool,
) -> Report:
    """Start the engine, follow it while it loads, wait for an answer. Missing weights are fetched first.

    Without a deployment, it proposes this machine's default on a terminal, and Enter starts it.
    """
    from dflash_deploy.operations.up import Unready, Worker, start

    if yes or (is_asked_on_terminal() and not (as_json or json_stream)):
        directory = _with_deployment(directory, asks=not yes)
    try:
        reporter = terminal(json_stream=json_stream)
        started = start(directory, patience=patience, fix=fix, ask_engine=ask_engine, reporter=reporter)
    except EngineNotReady as problem:
        evidence = problem.detail.splitlines()
        return Report(Unready(problem.failure or None, problem.fix, evidence, problem.fixed), failure=problem)
    if isinstance(started, Worker):
        shown = (
            f"rank {started.rank} runs and waits for rank 0 at {started.master}; only rank 0 answers requests",
            "next      dflash-deploy up      on rank 0, which waits for both and answers",
            "          dflash-deploy logs    what this engine writes meanwhile",
        )
        return Report(started, shown)
    if started.can_pin and is_asked_on_terminal() and not (yes or as_json or json_stream):
        offer_digest(started)
    findings = tuple(finding for finding in started.plan.findings if finding.severity != "note")
    return Report(started, _started(started), findings, started.failure)


def _with_deployment(directory: Path, *, asks: bool) -> Path:
    """A directory with a deployment: this one, or one with this machine's default, which is shown and written.

    Raises typer.Abort if the user declines, and what `init` raises.
    """
    from dflash_deploy.cli.report import note
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.operations.plan import init, offer
    from dflash_deploy.plan.result import Choice

    if Deployment(directory).exists() or Deployment(directory).state.is_dir():
        return directory
    place = place_of_new(None if directory == HERE else directory)
    offered = offer(place)
    plan = offered.plan()
    for line in _proposal(plan):
        note(line)
    port = offered.free_port(plan)
    if asks:
        typer.confirm("Start it?", default=True, abort=True, err=True)
    choice = Choice() if port == plan.settings.dflash_port else Choice(port=port)
    deployment = init(place, choice).deployment
    note(f"wrote     {deployment.env_file} (settings and the key, readable only by you)")
    return deployment.directory


def _proposal(plan: Plan) -> Iterator[str]:
    """The default of this machine in five lines."""
    target, drafter = plan.pair.target, plan.pair.drafter
    gated = f"; gated: needs {Settings.hf_token}" if target.gated else ""
    weights = target.bytes + (drafter.bytes if plan.drafting else 0)
    yield f"model     {plan.pair.title}, on {plan.profile.title}{f'. {target.notice}' if target.notice else ''}"
    yield f"download  {size_of(weights)} of weights" if target.bundled is None else "download  none: in this package"
    yield f"context   {plan.settings.max_model_len or 0:,} tokens, {plan.settings.max_num_seqs or 1} requests at a time"
    yield f"speed     {_expected(plan)}"
    yield f"licence   {target.licence or 'not stated: find out whether you may use it'}{gated}"


def _expected(plan: Plan) -> str:
    """What one request gets, without and with drafts."""
    if plan.profile.speed and plan.profile.speed_of == plan.pair.name:
        return f"{plan.profile.speed} tokens/s without and with drafts"
    for speed in plan.speed[:1]:
        plain = f"about {speed.plain_expected:.0f} tokens/s without drafts"
        drafted = [f"{one.tokens_per_s:.0f} ({one.text})" for one in speed.of("dflash") if one.text in ("chat", "code")]
        return f"{plain}, {' to '.join(drafted)} with them" if drafted else plain
    return "not predicted: measure it with `dflash-deploy bench --baseline`"


def offer_digest(started: Started) -> None:
    """Offer to keep the base image that works, whatever its tag names later."""
    from dflash_deploy.cli.report import note
    from dflash_deploy.operations.image import digest

    tag = started.plan.settings.dflash_base_image
    try:
        if typer.confirm(f"ready. Write the digest of {tag} to .env, in case the tag moves?", default=True, err=True):
            note(f"pinned    {digest(started.deployment.directory, pin=True).reference}")
    except typer.Abort:
        note("not pinned: `dflash-deploy image digest --pin` does it later")
    except DeployError as problem:
        note(f"not pinned: {problem.message}; {problem.hint}")


def _started(started: Started) -> tuple[str, ...]:
    deployment = started.deployment
    there, fixed, speed = deployment.option, started.fixed, started.tokens_per_second
    drafts = f", acceptance length {started.acceptance_length:.1f}" if started.acceptance_length else ""
    return (
        f"ready after {started.seconds:.0f} s" if started.changed else "was ready already; nothing changed",
        f"endpoint  {started.endpoint}",
        f"model     {started.model}",
        f"key       {Settings.vllm_api_key} in {deployment.env_file}",
        *([f"fixed     {fixed.failure}; .env as it was: {deployment.last_env_file}"] if fixed else []),
        f"asked     {started.plan.pair.text.ask}",
        f"answered  {started.answer}",
        *([] if speed is None else [f"speed     {speed:.0f} tokens/s on one short answer{drafts}"]),
        f"checked   {', '.join(started.passed)}",
        f"next      dflash-deploy test{there}     check answers, streaming, limits, load and drafts",
        f"          dflash-deploy chat{there}     talk with the model",
        f"          dflash-deploy down{there}     stop it; weights and settings stay",
    )


@command(changes=True, examples=("down", "down --dir /srv/vision"))
def down(*, directory: Path) -> Report:
    """Stop and remove the engine. Weights, settings and caches stay."""
    from dflash_deploy.operations.down import stop

    done = stop(directory, reporter=terminal())
    said = "stopped; weights and settings stay" if done.stopped else "nothing was running"
    return Report(done, (said,))


@command(changes=True, examples=("rollback", "rollback --json"))
def rollback(patience: Patience = PATIENCE, *, directory: Path, json_stream: bool) -> Report:
    """Restore the settings of the last good start, and start them. They are written back into .env."""
    from dflash_deploy.operations.up import roll_back

    done = roll_back(directory, patience=patience, reporter=terminal(json_stream=json_stream))
    count = len(done.restored or ())
    said = f"{count} settings are as they were; .env.last keeps the others" if count else "nothing to undo"
    shown = (said, f"ready     {done.endpoint}", f"checked   {', '.join(done.passed)}")
    return Report(done, shown, failure=done.failure)


@command(changes=True, examples=("restart", "restart --dir /srv/vision"))
def restart(patience: Patience = PATIENCE, *, directory: Path, json_stream: bool) -> Report:
    """Stop the engine and start it with the settings of .env. It restarts even if they have not changed."""
    from dflash_deploy.operations.up import restart as run_restart

    reporter = terminal(json_stream=json_stream)
    done = run_restart(directory, patience=patience, reporter=reporter)
    shown = (f"ready     after {done.seconds:.0f} s, {done.endpoint}", f"checked   {', '.join(done.passed)}")
    return Report(done, shown, failure=done.failure)


@command(changes=True, examples=("run", "run --dir /srv/vision"), json=False)
def run(patience: Patience = PATIENCE, *, directory: Path) -> Report:
    """Start the deployment and stay in the foreground. Its log is shown until SIGTERM or Ctrl-C stops it.

    The command waits for requests in progress first, at most 45 s; a second signal does not.
    """
    from dflash_deploy.operations.run import run as run_in_foreground

    run_in_foreground(directory, lambda line: typer.echo(visible(line)), patience=patience, reporter=terminal())
    return Report(shown=("stopped; weights and settings stay",))
