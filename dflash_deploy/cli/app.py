"""The commands, put together. A command's module is imported when it runs, or when its own help is shown."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from dflash_deploy import __version__
from dflash_deploy.cli.examples import epilog
from dflash_deploy.cli.streams import install
from dflash_deploy.errors import ExitCode

COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("init", "Write .env (with a fresh key) and compose.yaml for this machine."),
    "plan": ("plan", "Show each setting and why, the engine command, memory and speed."),
    "doctor": ("doctor", "Find what would keep the deployment from starting."),
    "pull": ("pull", "Fetch target and drafter, verified, at the commits of dflash.lock."),
    "render": ("render", "Write compose.yaml and the image's build context from .env."),
    "up": ("up", "Start the engine, follow it while it loads, wait for an answer."),
    "restart": ("rollback", "Stop the engine and start it with the settings of .env."),
    "rollback": ("rollback", "Restore the settings of the last good start, and start them."),
    "test": ("test", "Check answers, streaming, vision, the key, limits and drafts."),
    "bench": ("bench", "Measure tokens/s, TTFT, TPOT, ITL and acceptance."),
    "tune": ("tune", "Find the number of draft tokens that is fastest here."),
    "connect": ("connect", "Print a client's configuration for this endpoint."),
    "status": ("status", "Report whether the engine really answers."),
    "logs": ("logs", "Print the engine's log, or pack a bundle for a report."),
    "explain": ("explain", "Explain the log of any engine: cause, evidence, fix."),
    "down": ("down", "Stop and remove the engine."),
    "profiles": ("profiles", "Hardware that the catalog knows: list, show."),
    "models": ("models", "Models with their drafters: list, show, convert."),
    "keys": ("keys", "API keys of the endpoint: show, rotate, add, revoke, list, usage."),
    "monitor": ("monitor", "Metrics and alerts: up, down, status, test, silence, export."),
    "export": ("export", "The deployment elsewhere: kubernetes, compose, production-stack."),
    "fleet": ("fleet", "Several machines over SSH: init, up, status, test, keys, down."),
    "image": ("image", "The engine's image: build, verify, digest, sbom."),
    "schema": ("schema", "Print the JSON Schema of what a command prints with --json."),
}
"""Each command: the module in this package that has it under its name, and the first sentence of its help."""


NUMBERS = {"COLUMNS": "", "LINES": "", "COMP_CWORD": "0"}
"""Variables that rich and the shell's completion convert without a check, and what replaces other text."""


class LazyGroup(TyperGroup):
    """A group whose commands are names and summaries until one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments name, from its module, and the arguments that are left to it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if name is not None and found is not None else found, rest

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """The context of one call; wrong options are errors that can be shown."""
        with _quoting_safely():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; wrong options of it are errors that can be shown."""
        with _quoting_safely():
            return super().invoke(ctx)


@contextmanager
def _quoting_safely() -> Iterator[None]:
    """Word usage errors, and escape and cut the arguments that they quote."""
    try:
        yield
    except TyperException as problem:
        from dflash_deploy.cli.command import make_showable

        make_showable(problem)
        raise


@cache
def load(name: str) -> Any:
    """Import a command's module, and return the command as Typer runs it. Building it again takes 10 ms."""
    loaded = getattr(import_module(f"dflash_deploy.cli.{COMMANDS[name][0]}"), name)
    if isinstance(loaded, typer.Typer):
        group = get_group(loaded)
        group.name = name
        return _with_examples(group, name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(loaded)
    return _with_examples(get_command(alone), name)


def _with_examples(found: Any, name: str) -> Any:
    """The command, and all within it, with examples at the end of their help."""
    found.epilog = epilog(name)
    # one that is made from the help is cut where the line ends
    found.short_help = found.short_help or " ".join((found.help or "").partition("\n\n")[0].split())
    for word, inner in getattr(found, "commands", {}).items():
        _with_examples(inner, f"{name} {word}")
    return found


def _named() -> Callable[[], None]:
    def not_loaded() -> None:
        """Replaced by `LazyGroup` before it is called."""

    return not_loaded


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    # plain text: importing rich takes longer than the rest of --help
    rich_markup_mode=None,
    # a traceback with local variables would show the key
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, (_, summary) in COMMANDS.items():
    app.command(command, short_help=summary)(_named())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dflash-deploy {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve a vision-language model on your own GPU with DFlash speculative decoding."""
    if context.invoked_subcommand is None:
        from dflash_deploy.cli.here import here

        here()


def main() -> None:
    """The entry point of the `dflash-deploy` command."""
    # what a command imports stays: looking for garbage there after every 700 objects takes a tenth of a short command
    gc.set_threshold(50_000, 10, 10)
    install()
    for name, otherwise in NUMBERS.items():
        if not re.fullmatch("[0-9]{1,5}", os.environ.get(name, "0")):
            os.environ[name] = otherwise
    try:
        app()
    except SystemExit as ending:
        if ending.code == ExitCode.INTERRUPTED:
            # if Ctrl-C arrives while `exec` makes a module, as for dataclasses, CPython ends itself with the signal
            # although the interrupt was handled; the exit code is a promise
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        raise
    except KeyboardInterrupt:
        os._exit(ExitCode.INTERRUPTED)
    except Exception as problem:
        from dflash_deploy.cli.report import last_resort

        sys.exit(last_resort(problem))
