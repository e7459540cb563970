"""The numbers that the README states are those of the program."""

import re
from pathlib import Path

import pytest

from dflash_deploy.checks import CHECKS
from dflash_deploy.checks.run import ON_REQUEST
from dflash_deploy.rules import RULES

BY_DEFAULT = [name for name in CHECKS if name not in ON_REQUEST]
"""The checks of `test` without an option."""

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("things", "count"), [("rules", len(RULES)), ("checks", len(BY_DEFAULT))])
def test_a_stated_number_is_the_number_there_is(things: str, count: int) -> None:
    stated = {int(number) for number in re.findall(rf"(\d+) {things}(?! passed)", README)}
    assert stated == {count}


def test_the_shown_output_of_test_has_every_check() -> None:
    assert re.findall(r"^    (?:passed|skipped) +(\w+) ", README, re.MULTILINE) == BY_DEFAULT
    passed, skipped = map(int, re.findall(r"(\d+) checks passed, (\d+) skipped", README)[0])
    assert passed + skipped == len(BY_DEFAULT)
