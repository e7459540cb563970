"""The commands, put together. A command's module is imported when it runs, or when its own help is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from dflash_deploy import __version__
from dflash_deploy.cli.shared import NAMES, shared_options
from dflash_deploy.cli.streams import install
from dflash_deploy.errors import ExitCode
from dflash_deploy.registry import features

PACKAGE = "dflash_deploy.cli"

# Commands of the core by the sections of `--help`: the module of each, and the first sentence of its help.
SECTIONS: Mapping[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "init": (f"{PACKAGE}.init", "Write .env (with a fresh key) and compose.yaml for this machine."),
        "plan": (f"{PACKAGE}.plan", "Show each setting and why, the engine command, memory and speed."),
        "doctor": (f"{PACKAGE}.doctor", "Find what would keep the deployment from starting."),
        "pull": (f"{PACKAGE}.pull", "Fetch target and drafter, verified, at the commits of dflash.lock."),
        "up": (f"{PACKAGE}.up", "Start the engine, follow it while it loads, wait for an answer."),
        "test": (f"{PACKAGE}.test", "Check answers, streaming, vision, the key, limits and drafts."),
    },
    "Use": {
        "ask": (f"{PACKAGE}.chat", "Ask the model one question, with pictures and files."),
        "chat": (f"{PACKAGE}.chat", "Talk with the model in the terminal."),
        "connect": (f"{PACKAGE}.connect", "Print a client's configuration for this endpoint."),
        "keys": (f"{PACKAGE}.keys", "API keys of the endpoint: show, rotate, add, revoke, list, usage."),
    },
    "Measure": {
        "bench": (f"{PACKAGE}.bench", "Measure tokens/s, TTFT, TPOT, ITL and acceptance."),
        "tune": (f"{PACKAGE}.tune", "Find the number of draft tokens that is fastest here."),
    },
    "Operate": {
        "list": (
            f"{PACKAGE}.here",
            "List the deployments here and below ~/dflash, running or not.",
        ),
        "status": (f"{PACKAGE}.status", "Report whether the engine really answers."),
        "logs": (f"{PACKAGE}.logs", "Print the engine's log, or pack a bundle for a report."),
        "explain": (f"{PACKAGE}.logs", "Explain the log of any engine: cause, evidence, fix."),
        "down": (f"{PACKAGE}.up", "Stop and remove the engine."),
        "run": (f"{PACKAGE}.up", "Start the deployment and stay in the foreground."),
        "set": (f"{PACKAGE}.set", "Change settings of .env, or list what can be set."),
        "upgrade": (f"{PACKAGE}.upgrade", "Move to newer settings and test them, or go back."),
        "restart": (f"{PACKAGE}.up", "Stop the engine and start it with the settings of .env."),
        "rollback": (f"{PACKAGE}.up", "Restore the settings of the last good start, and start them."),
    },
    "More": {
        "profiles": (f"{PACKAGE}.profiles", "Hardware that the catalog knows: list, show."),
        "models": (f"{PACKAGE}.models", "Models with drafters: list, show, use, add, rm, prune, convert."),
        "image": (f"{PACKAGE}.image", "The engine's image: build, verify, digest."),
        "render": (f"{PACKAGE}.set", "Write compose.yaml and the image's build context from .env."),
        "schema": (f"{PACKAGE}.schema", "Print the JSON Schema of what a command prints with --json."),
    },
}


def _section(title: str) -> dict[str, tuple[str, str]]:
    """The commands of a section of `--help`, those of features last."""
    return SECTIONS[title] | {
        name: one for feature in features() if feature.section == title for name, one in feature.commands.items()
    }


# All commands, in the order of `--help`.
COMMANDS = {name: command for title in SECTIONS for name, command in _section(title).items()}


# Commands by the names that other tools gave them. They are not in the help.
HABITS: Mapping[str, str] = {"start": "up", "serve": "up", "stop": "down", "ps": "status", "ls": "list"}

# Options whose value may be left out, and the value then; Typer's options always have one, or never.
IMPLIED: Mapping[str, str] = {"--watch": "2"}


class Implying(TyperCommand):
    """A command with options whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left."""
        mine = {name: IMPLIED[name] for option in self.params for name in option.opts if name in IMPLIED}
        whole = []
        for one, after in pairwise([*args, "-"]):
            whole += [one, mine[one]] if one in mine and after.startswith("-") else [one]
        return super().parse_args(ctx, whole)


class LazyGroup(TyperGroup):
    """A group whose commands are names and summaries until one of them is called. It has the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options().values()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left; `help`, `help COMMAND` and `version` are options of the same name."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, ["--version"] if args == ["version"] else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments name, from its module, and the arguments that are left to it."""
        name, found, rest = super().resolve_command(ctx, [HABITS.get(args[0], args[0]), *args[1:]])
        return name, load(name) if name is not None and found is not None else found, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in their sections."""
        widest = max(map(len, COMMANDS))
        for title in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), summary) for name, (_, summary) in _section(title).items()])

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
    loaded = getattr(import_module(COMMANDS[name][0]), name)
    if isinstance(loaded, typer.Typer):
        group = get_group(loaded)
        group.name = name
        return _completed(group)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Implying)(loaded)
    return _completed(get_command(alone))


def _completed(found: Any) -> Any:
    """The command, and all within it, with the options of all commands, and examples at the end of their help."""
    about = getattr(getattr(found, "callback", None), "about", None)
    if about is not None and about.examples:
        from dflash_deploy.cli.command import examples

        found.epilog = examples(*about.examples)
    # a group has all of them: each is for the commands in it
    for option in NAMES if about is None else about.shared:
        found.params.append(shared_options()[option])
    # one that is made from the help is cut where the line ends
    found.short_help = found.short_help or " ".join((found.help or "").partition("\n\n")[0].split())
    for inner in getattr(found, "commands", {}).values():
        _completed(inner)
    return found


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
    # `LazyGroup` replaces it before it is called
    app.command(command, short_help=summary)(lambda: None)


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

        here(shared=context)


def main() -> None:
    """The entry point of the `dflash-deploy` command."""
    install()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as problem:
        from dflash_deploy.cli.report import last_resort

        sys.exit(last_resort(problem))
