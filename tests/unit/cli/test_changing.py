"""Each command is known as one that changes something, or that does not: then its lost output is a failure."""

import typer

from dflash_deploy.cli.app import COMMANDS, load
from dflash_deploy.cli.report import CHANGING

READING = {
    "bench",
    "connect",
    "doctor",
    "explain",
    "fleet facts",
    "fleet keys usage",
    "fleet logs",
    "fleet status",
    "fleet test",
    "image sbom",
    "image verify",
    "keys list",
    "keys show",
    "keys usage",
    "logs",
    "models list",
    "models show",
    "monitor status",
    "monitor test",
    "plan",
    "profiles list",
    "profiles show",
    "schema",
    "status",
    "test",
}
"""What these print is all that they are for. What `bench` and `test` restart, they put back."""


def names_of(command: typer.core.TyperCommand, name: str) -> list[str]:
    """A command, or the commands within a group."""
    below = getattr(command, "commands", {})
    return [one for word, inner in below.items() for one in names_of(inner, f"{name} {word}")] or [name]


def test_each_command_changes_something_or_does_not() -> None:
    every = {one for name in COMMANDS for one in names_of(load(name), name)}
    changing = {name.replace("__", "-").replace("_", " ") for name in CHANGING}
    assert changing | READING == every
    assert changing.isdisjoint(READING)
