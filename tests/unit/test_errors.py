"""The exit codes that people and scripts rely on."""

import re
from pathlib import Path

import pytest

from dflash_deploy import errors
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.errors import BadInput, DeployError, ExitCode

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_documented_codes_are_the_codes() -> None:
    documented = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCS.read_text(), re.M)}
    assert documented == {int(code): code.name for code in ExitCode}


def test_every_error_stands_in_the_drawn_tree() -> None:
    classes = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, DeployError)]
    drawn = re.findall(r"^ +(?:[│ ]*[├└]── )?([A-Z][A-Za-z]+) ", str(errors.__doc__), re.M)
    assert sorted(drawn) == sorted(cls.__name__ for cls in classes)


def test_every_error_says_when_it_is_raised() -> None:
    for thing in vars(errors).values():
        if isinstance(thing, type) and issubclass(thing, DeployError) and thing is not DeployError:
            assert str(thing.__doc__).startswith("Raised ")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85", "\u2028"])
def test_an_error_is_one_line_whatever_it_quotes(end: str) -> None:
    said = f"`a{end}error: b` is not valid"
    assert BadInput(said, hint="x").message == str(BadInput(said, hint="x")) == "`a error: b` is not valid"
    assert str(EndpointError(said)) == "`a error: b` is not valid"
