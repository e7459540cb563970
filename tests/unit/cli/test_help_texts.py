"""The help of each command: two examples that the command line accepts, within 80 columns."""

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.app import COMMANDS, app, load
from tests.support.rows import each_of
from tools.reference.commands import examples_of


def every_command() -> Iterator[tuple[str, Any]]:
    """Each command and each group by its full name."""
    for name in COMMANDS:
        yield from within(name, load(name))


def within(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from within(f"{name} {word}", inner)


ALL = dict(every_command())
EXAMPLES = {name: [one.removeprefix("dflash-deploy ") for one in examples_of(command)] for name, command in ALL.items()}


@cache
def help_of(name: str) -> str:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert shown.exit_code == 0
    return shown.output


@each_of(["", *ALL])
def test_the_help_fits_80_columns_and_nothing_is_cut(name: str) -> None:
    for line in help_of(name).splitlines():
        assert len(line) <= 80
        assert "…" not in line
        # the usage line may end so
        assert not line.endswith("...") or line.startswith("Usage: ")


@each_of(ALL)
def test_the_help_ends_with_two_different_examples(name: str) -> None:
    shown = help_of(name).partition("Examples:\n")[2].splitlines()
    assert shown == [f"    dflash-deploy {example}" for example in EXAMPLES[name]]
    assert len(set(shown)) == 2, shown


@each_of((name, example) for name, both in EXAMPLES.items() for example in both)
def test_the_command_line_accepts_each_example(row: tuple[str, str]) -> None:
    name, example = row
    words = shlex.split(example)
    assert words[: len(name.split())] == name.split()
    known = load_catalog()
    for context in contexts(words):
        values = context.params
        assert not values.get("profile") or known.profile(values["profile"])
        assert not values.get("model") or known.pair(values["model"])
        # the names of keys are the user's own
        if "name" in values and words[0] in {"profiles", "models"}:
            assert (known.profile if words[0] == "profiles" else known.pair)(values["name"])


def contexts(words: list[str]) -> Iterator[Any]:
    """The context of each command that the words name, parsed by it, without running it."""
    command, context = get_command(app), None
    while True:
        context = command.make_context(command.name or "dflash-deploy", words, parent=context)
        yield context
        if not (rest := [*context._protected_args, *context.args]) or not hasattr(command, "resolve_command"):
            return
        _, command, words = command.resolve_command(context, rest)
