"""Every theme that people run into is covered by failures that exist, and every fault of the design by its tests."""

from __future__ import annotations

import re
from pathlib import Path

from dflash_deploy.catalog.load import load_catalog
from tests.support.rows import each_of
from tools.reference.themes import Theme, design, themes

TESTS = Path(__file__).resolve().parents[2]
THEMES = themes()
IDS = {failure.id for failure in load_catalog().failures}


@each_of(THEMES, name=lambda theme: theme.theme)
def test_a_theme_is_covered_by_failures_that_exist(theme: Theme) -> None:
    assert theme.failures
    assert set(theme.failures) <= IDS


def test_every_theme_is_listed_once() -> None:
    named = [one.theme for one in THEMES]
    assert len(named) == len(set(named)) == 47


def test_each_of_the_seven_faults_of_the_design_has_tests_that_exist() -> None:
    found = {
        name for file in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    faults = design()
    assert len(faults) == 7
    assert {name for names in faults.values() for name in names} <= found
