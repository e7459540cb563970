"""The questions of `init` on a terminal: at most four, each with a default that Enter accepts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dflash_deploy import operations
from dflash_deploy.errors import UnknownProfile

if TYPE_CHECKING:
    from dflash_deploy.operations import Choice, Offer

LARGEST_PORT = 65535


def is_asked_on_terminal() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(directory: Path) -> Choice:
    """Ask for profile, directory of the weights, port and runtime; the last ones only if there is something to choose.

    Raises BadInput if the directory is a deployment already, and what planning raises.
    """
    offered = operations.offer(directory)
    profile = typer.prompt("Hardware profile", offered.fitting or None, value_proc=_profile_of(offered), err=True)
    plan = offered.plan(profile)
    models = Path("~/models")
    if plan.pair.target.repo:
        models = typer.prompt("Directory for the weights", str(models), value_proc=Path, err=True)
    port = typer.prompt("Port", str(offered.free_port(plan)), value_proc=_port, err=True)
    runtimes = offered.runtimes(plan)
    runtime = None
    if len(runtimes) > 1:
        wanted = typer.prompt("Runtime (compose or native)", runtimes[0], value_proc=_one_of(runtimes), err=True)
        runtime = next(one for one in runtimes if one == wanted)
    return operations.Choice(profile=profile, models_dir=models, port=port, runtime=runtime)


def _profile_of(offered: Offer) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            return offered.catalog.profile(text.strip()).name
        except UnknownProfile as problem:
            raise typer.BadParameter(f"{problem.message}; {problem.hint}") from None

    return read


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= LARGEST_PORT:
        return int(text)
    raise typer.BadParameter(f"`{text}` is not a valid port (1-{LARGEST_PORT})")


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip() in names:
            return text.strip()
        raise typer.BadParameter(f"`{text}` is not a valid runtime ({', '.join(names)})")

    return read
