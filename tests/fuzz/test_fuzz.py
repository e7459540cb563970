"""At least 2,000 different hostile inputs: each gives a value, or an error of the project in one short line.

The inputs are those of one number, and those that were found before. `make fuzz` reads others, for longer.
"""

import importlib.util
import platform
import sys

import pytest

from tests.fuzz.kinds import all_kinds
from tests.fuzz.report import Totals, collect, start
from tests.fuzz.worker import CORPUS

ENOUGH = 2000

PATIENCE = 900  # seconds of one process, which needs about twenty
READ_BY_COMMANDS = 150

# Whether atheris has a wheel, as in pyproject.toml.
GUIDED = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 14)


@pytest.fixture(scope="module")
def readers() -> Totals:
    totals = Totals()
    collect(totals, start("worker", "--inputs", "100"), PATIENCE)
    return totals


def sound(totals: Totals) -> None:
    """No process ended in another way, and nothing was found."""
    assert totals.problems == []
    assert [(found["kind"], found["problem"], found["said"][-600:]) for found in totals.findings] == []


def test_every_reader_gives_a_value_or_an_error_of_the_project(readers: Totals) -> None:
    sound(readers)
    assert set(readers.rows) == set(all_kinds())
    assert readers.inputs >= ENOUGH


@pytest.mark.parametrize("kind", all_kinds())
def test_each_kind_has_inputs_that_are_read(readers: Totals, kind: str) -> None:
    row = readers.rows[kind]
    assert row["inputs"] > 40
    assert row["refused"] < row["inputs"], "no input is valid: the later code was not reached"


def test_commands_end_with_a_code_and_a_line() -> None:
    totals = Totals()
    collect(totals, start("commands", "--inputs", "300"), PATIENCE)
    sound(totals)
    assert totals.inputs > READ_BY_COMMANDS


def test_the_corpus_belongs_to_the_kinds() -> None:
    folders = {kind.folder for kind in all_kinds().values()}
    assert {folder.name for folder in CORPUS.iterdir()} <= folders


@pytest.mark.skipif(not GUIDED, reason="atheris has wheels for Linux on x86-64 only; the readers replay the corpus")
def test_inputs_guided_by_coverage_find_nothing() -> None:
    assert importlib.util.find_spec("atheris"), "atheris is not installed: pip install -e '.[dev]'"
    totals = Totals()
    collect(totals, start("coverage", "--seconds", "1"), PATIENCE)
    sound(totals)
    assert all(row["inputs"] > 10 for row in totals.rows.values())
