"""The table of commands agrees with the commands."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
import typer

from dflash_deploy.cli.app import COMMANDS, HABITS
from tests.support.cli import dflash


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_sentence_of_the_command_s_own_help(name: str) -> None:
    module, summary = COMMANDS[name]
    loaded = getattr(import_module(module), name)
    own = loaded.info.help if isinstance(loaded, typer.Typer) else inspect.getdoc(loaded)
    first, _, rest = " ".join(str(own).split()).partition(". ")
    assert summary == (f"{first}." if rest else first)


def test_a_summary_fits_on_a_line() -> None:
    width = 80 - max(map(len, COMMANDS)) - 4
    assert [name for name, (_, summary) in COMMANDS.items() if len(summary) > width] == []


@pytest.mark.parametrize(("habit", "name"), HABITS.items())
def test_a_name_of_other_tools_is_the_command(habit: str, name: str, tmp_path: Path) -> None:
    said = dflash(habit, "--help", at=tmp_path).succeeded().out
    assert said == dflash(name, "--help", at=tmp_path).succeeded().out
    assert f"\n  {habit} " not in dflash("--help", at=tmp_path).out


@pytest.mark.parametrize(("asked", "same"), [("help", "--help"), ("help keys add", "keys add --help")])
def test_help_as_a_word_is_the_help_of_what_follows(asked: str, same: str, tmp_path: Path) -> None:
    said = dflash(*asked.split(), at=tmp_path).succeeded().out
    assert said == dflash(*same.split(), at=tmp_path).succeeded().out
