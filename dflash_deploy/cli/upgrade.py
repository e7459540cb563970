"""`upgrade` and `models use`: newer settings or another model, tried, tested, kept or taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli import options
from dflash_deploy.cli.command import command, option_of, terminal
from dflash_deploy.cli.options import Drafter, is_asked_on_terminal
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from dflash_deploy.operations.upgrade import Upgraded, Wish

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Never prompt.")]


@command(changes=True, examples=("upgrade", "upgrade --check"))
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Show what is newer and exit with 6 if anything is; change nothing.")
    ] = False,
    yes: Yes = False,
    *,
    directory: Path,
) -> Report:
    """Move to newer settings and test them, or go back. Your own settings stay."""
    from dflash_deploy.operations.upgrade import Wish, look

    if not check:
        return _run(directory, Wish(), yes)
    found = look(directory)
    return Report(found, tuple(_proposal(found)), failure=found.outdated)


@command(changes=True, examples=("models use qwen3.6-27b-fp8", "models use qwen3.6-27b-fp8 --yes"))
def models_use(
    name: Annotated[
        str, typer.Argument(help="A model, OWNER/REPO, DIRECTORY or FILE.gguf.", autocompletion=options.models)
    ],
    drafter: Drafter = None,
    yes: Yes = False,
    *,
    directory: Path,
) -> Report:
    """Serve another model here: fetch it, switch, test, or go back. Both models stay on disk."""
    from dflash_deploy.operations.upgrade import Wish

    return _run(directory, Wish(model=name, drafter=drafter), yes)


def _run(directory: Path, wish: Wish, yes: bool) -> Report:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.operations.upgrade import upgrade as run_upgrade

    if not yes and not is_asked_on_terminal():
        raise BadInput("a question needs a terminal", hint="--yes changes .env without a question")
    reporter, redact = terminal(), Deployment(directory).redact

    def agree(found: Upgraded) -> bool:
        for line in _proposal(found):
            reporter.note(redact(line))
        return yes or typer.confirm("Upgrade now?", err=True)

    done = run_upgrade(directory, wish, agree=agree, reporter=reporter)
    said = {
        "planned": "nothing changed",
        "kept": f"runs     the new settings; next: dflash-deploy status{option_of(directory)}",
        "back": "back     the old settings are in .env again",
    }
    shown = [said[done.outcome]] if done.outcome in said else _proposal(done)
    return Report(done, tuple(shown), failure=done.failure)


def _proposal(found: Upgraded) -> Iterator[str]:
    """What changes and why, and what stays."""
    for row in found.changes:
        source = f" [{row.source}]" if row.source else ""
        yield f"changes  {row.name}: {row.old or '(default)'} -> {row.new or '(default)'}  {row.reason}{source}"
    if found.kept:
        yield f"stays    {', '.join(found.kept)}: set by you"
    if not found.changes:
        yield "current  .env has what this program would write"
