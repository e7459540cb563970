"""The numbers and tables that the README states are those of the program."""

import re
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.run import CHECKS
from dflash_deploy.rules.table import RULES
from tools.pictures.album import ALBUM, FOLDER, Shot, texts
from tools.readme import BOXES, CHART, EVIDENCE, README, chart, filled

TEXT = README.read_text(encoding="utf-8")


def test_it_is_read_in_some_minutes() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 900


def test_the_bars_are_the_measured_speeds_of_the_table() -> None:
    assert CHART.read_text(encoding="utf-8") == chart(EVIDENCE.read_text(encoding="utf-8")), "run: make generate"


@pytest.mark.parametrize(("things", "count"), [("rules", len(RULES)), ("checks", len(CHECKS))])
def test_a_stated_number_is_the_number_there_is(things: str, count: int) -> None:
    stated = {int(number) for number in re.findall(rf"(\d+) {things}(?! passed)", TEXT)}
    assert stated == {count}


def test_the_shown_output_of_test_has_checks_that_exist_in_their_order() -> None:
    shown = re.findall(r"^    (?:passed|skipped) +(\w+) ", TEXT, re.MULTILINE)
    assert shown == [name for name in CHECKS if name in shown] != []
    passed, skipped = map(int, re.findall(r"(\d+) checks passed, (\d+) skipped", TEXT)[0])
    assert passed + skipped == len(CHECKS)


def test_the_evidence_counts_the_catalog() -> None:
    pairs = load_catalog().pairs.values()
    families = {pair.family.name for pair in pairs}
    assert f"{len(pairs)} pairs of {len(families)} model families" in EVIDENCE.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [README, EVIDENCE], ids=lambda page: page.name)
def test_tables_of_machines_are_those_of_the_catalog(page: Path) -> None:
    catalog = load_catalog()
    assert set(BOXES) == set(catalog.profiles)
    text = page.read_text(encoding="utf-8")
    assert "| `dgx-spark` |" in text
    assert filled(text, catalog) == text, "run: make generate"


@pytest.mark.parametrize("shot", ALBUM, ids=lambda shot: shot.name)
def test_each_picture_shows_its_commands_and_has_words_for_those_who_cannot_see_it(shot: Shot) -> None:
    svg = (FOLDER / f"{shot.name}.svg").read_text(encoding="utf-8")
    assert f"<title>{shot.title}</title>" in svg
    prompts = [line for line in texts(svg) if line.startswith("$ ")]
    assert prompts == [f"$ dflash-deploy {command}" for command in shot.commands]
