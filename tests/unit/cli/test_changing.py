"""Each command is known as one that changes something, or that does not: then its lost output is a failure."""

from collections.abc import Iterator
from typing import Any

from dflash_deploy.cli.app import COMMANDS, load
from dflash_deploy.cli.shown import About

# What these print is all that they are for. What `bench` and `test` restart, they put back.
READING = {
    "ask",
    "bench",
    "chat",
    "connect",
    "doctor",
    "explain",
    "fleet logs",
    "fleet status",
    "fleet test",
    "image verify",
    "keys list",
    "keys show",
    "keys usage",
    "list",
    "logs",
    "models list",
    "models show",
    "open",
    "plan",
    "profiles list",
    "profiles show",
    "schema",
    "status",
    "test",
}


def leaves(command: Any, name: str) -> Iterator[tuple[str, About]]:
    """A command, or the commands within a group, each with what it declares."""
    below = getattr(command, "commands", {})
    for word, inner in below.items():
        yield from leaves(inner, f"{name} {word}")
    if not below:
        yield name, command.callback.about


LEAVES = {name: about for one in COMMANDS for name, about in leaves(load(one), one)}


def test_each_command_changes_something_or_does_not() -> None:
    changing = {name for name, about in LEAVES.items() if about.changes}
    assert changing | READING == set(LEAVES)
    assert changing.isdisjoint(READING)


def test_each_command_has_its_own_name_and_two_examples_of_itself() -> None:
    assert {name: about.name for name, about in LEAVES.items()} == {name: name for name in LEAVES}
    assert [name for name, about in LEAVES.items() if len(about.examples) != 2] == []
    assert [one for name, about in LEAVES.items() for one in about.examples if not one.startswith(name)] == []
