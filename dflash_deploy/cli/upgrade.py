"""`upgrade` and `models use`: newer settings or another model, tried, measured, kept or taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli import options
from dflash_deploy.cli.command import command, option_of, terminal
from dflash_deploy.cli.options import (
    HERE,
    Directory,
    Drafter,
    Engine,
    Json,
    Model,
    Patience,
    Recipe,
    is_asked_on_terminal,
)
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_deploy.operations.upgrade_plan import Upgraded, Wish

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Never prompt.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")]


@command(changes=True, examples=("upgrade", "upgrade --check"))
def upgrade(
    engine: Engine = None,
    recipe: Recipe = None,
    model: Model = None,
    check: Annotated[bool, typer.Option("--check", help="End with 6 if something is newer; change nothing.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    directory: Directory = HERE,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Move to newer settings, test and measure them, or go back.

    Your own settings stay. After Ctrl-C or a power cut the same command continues.
    """
    from dflash_deploy.operations.upgrade_plan import Wish

    wish = Wish(engine=engine, recipe=recipe, model=model)
    return _shown(directory, wish, check=check) if check or dry_run else _run(directory, wish, yes, patience)


@command(changes=True, examples=("models use qwen3.6-27b-fp8", "models use qwen3.6-27b-fp8 --dry-run"))
def models_use(
    name: Annotated[
        str, typer.Argument(help="A model, OWNER/REPO, DIRECTORY or FILE.gguf.", autocompletion=options.models)
    ],
    drafter: Drafter = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    directory: Directory = HERE,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Serve another model here: fetch it, switch, test, or go back. Both models stay on disk."""
    from dflash_deploy.operations.upgrade_plan import Wish

    wish = Wish(model=name, drafter=drafter)
    return _shown(directory, wish) if dry_run else _run(directory, wish, yes, patience)


def _shown(directory: Path, wish: Wish, *, check: bool = False) -> Report:
    from dflash_deploy.operations.upgrade import look

    found = look(directory, wish)
    return Report(found, tuple(_proposal(found)), failure=found.outdated if check else None)


def _run(directory: Path, wish: Wish, yes: bool, patience: float) -> Report:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.operations.upgrade import upgrade as run_upgrade

    if not yes and not is_asked_on_terminal():
        raise BadInput("a question needs a terminal", hint="--yes upgrades without a question, --dry-run shows it")
    reporter, redact = terminal(), Deployment(directory).redact

    def agree(found: Upgraded) -> bool:
        for line in _proposal(found):
            reporter.note(redact(line))
        return yes or typer.confirm("Upgrade now?", err=True)

    done = run_upgrade(directory, wish, agree=agree, patience=patience, reporter=reporter)
    shown = _proposal(done) if done.outcome == "current" else _result(done, option_of(directory))
    return Report(done, tuple(shown), failure=done.failure)


def _proposal(found: Upgraded) -> Iterator[str]:
    """What is newer, what changes and why, and what stays."""
    for one in found.newer:
        how = f": {one.command}" if one.command else ""
        yield f"newer    {one.what} {f'{one.now} -> ' if one.now else ''}{one.newer}{how}"
    for row in found.changes:
        source = f" [{row.source}]" if row.source else ""
        yield f"changes  {row.name}: {row.old or '(default)'} -> {row.new or '(default)'}  {row.reason}{source}"
    if found.kept:
        yield f"stays    {', '.join(found.kept)}: set by you"
    for said in found.unknown:
        yield f"unknown  {said}"
    if not found.changes:
        yield "current  .env has what this program would write"


def _result(done: Upgraded, there: str) -> Iterator[str]:
    """What runs now, and the speed of both."""
    for load, old in (done.before or {}).items():
        new = (done.after or {}).get(load)
        yield f"speed    {load}: {old:.0f} tokens/s before{'' if new is None else f', {new:.0f} now'}"
    if done.outcome == "planned":
        yield "nothing changed"
    elif done.outcome == "kept":
        yield "runs     the new settings; .env.last has the old ones"
        yield f"next     dflash-deploy status{there}"
    else:
        yield "back     the old settings are in .env again"
