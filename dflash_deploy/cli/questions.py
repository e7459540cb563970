"""The questions of `init` on a terminal: at most five, each with a default that Enter accepts."""

from __future__ import annotations

import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, TypeVar

import typer

from dflash_deploy import operations
from dflash_deploy.cli.recipes import offer_lines
from dflash_deploy.errors import UnknownProfile

if TYPE_CHECKING:
    from dflash_deploy.operations import Choice, Offer

T = TypeVar("T")

LARGEST_PORT = 65535


def is_asked_on_terminal() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(directory: Path) -> Choice:
    """Ask for profile, recipe, directory of the weights, port and runtime, if there is something to choose.

    Raises BadInput if the directory is a deployment already, and what planning raises.
    """
    offered = operations.offer(directory)
    profile = _asked("Hardware profile", offered.fitting or "", _profile_of(offered))
    recipe = _recipe(offered, profile)
    plan = offered.plan(profile, recipe)
    models = Path("~/models")
    if plan.pair.target.repo:
        models = _asked("Directory for the weights", str(models), Path)
    port = _asked("Port", str(offered.free_port(plan)), _port)
    runtimes = offered.runtimes(plan)
    runtime = None
    if len(runtimes) > 1:
        wanted = _asked("Runtime (compose or native)", runtimes[0], _one_of(runtimes, "runtime"))
        runtime = next(one for one in runtimes if one == wanted)
    return operations.Choice(profile=profile, recipe=recipe, models_dir=models, port=port, runtime=runtime)


def _recipe(offered: Offer, profile: str) -> str | None:
    """The chosen recipe; `None`, without a question, if the profile has fewer than two."""
    recipes = offered.recipes(profile)
    default = next((one.recipe.name for one in recipes if one.recipe.default), None)
    if default is None or len(recipes) < 2:
        return None
    width = get_terminal_size().columns
    for line in offer_lines(recipes, profile):
        typer.echo("\n".join(wrap(line, width, subsequent_indent=" " * 6, break_on_hyphens=False)), err=True)
    return _asked("Recipe", default, _one_of([one.recipe.name for one in recipes], "recipe"))


def _asked(text: str, default: str, read: Callable[[str], T]) -> T:
    """Ask until there is an answer that `read` accepts; an empty one is `default`, if there is one."""
    while True:
        typer.echo(f"{text}{f' [{default}]' if default else ''}: ", nl=False, err=True)
        given = _line() or default
        try:
            if given:
                return read(given)
        except typer.BadParameter as problem:
            typer.echo(f"Error: {problem.message}", err=True)


def _line() -> str:
    """Read a line from the terminal. Raises typer.Abort at the end of input.

    `input` and `readline` do not see a Ctrl-C that comes just before they read: Python has noted the signal, and acts
    on it when the read returns. So a signal also ends the wait for the line, whenever it comes.
    """
    with ExitStack() as ends:
        signals, wake = map(ends.enter_context, socket.socketpair())
        wake.setblocking(False)
        ends.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False))
        while sys.stdin not in select.select([sys.stdin, signals], [], [])[0]:
            signals.recv(1)
        line = sys.stdin.readline()
    if not line:
        raise typer.Abort
    return line.rstrip("\n")


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


def _one_of(names: Sequence[str], what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip() in names:
            return text.strip()
        raise typer.BadParameter(f"`{text}` is not a valid {what} ({', '.join(names)})")

    return read
