"""Numbers that the explanations state are those of the program and of the catalog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.speed_model import compared, median_error
from dflash_deploy.catalog import load_catalog
from dflash_deploy.checks.acceptance import BROKEN_BELOW, WEAK_BELOW
from dflash_deploy.plan import speed
from dflash_deploy.startup.watch import DECAYED

EXPLANATION = Path(__file__).parents[2] / "docs" / "explanation"
SPEEDS = [one for one in load_catalog().speeds if one.pair == "qwen3.5-27b-bf16" and one.source == "z-lab model card"]


def text(name: str) -> str:
    return " ".join((EXPLANATION / name).read_text(encoding="utf-8").split())


def rows(name: str, first: str) -> list[list[str]]:
    """The cells of the rows whose first cell matches."""
    written = (EXPLANATION / name).read_text(encoding="utf-8").splitlines()
    cells = ([cell.strip() for cell in line.strip("| ").split("|")] for line in written if line.startswith("| "))
    return [row for row in cells if re.fullmatch(first, row[0])]


def plain(name: str) -> str:
    return name.lower().replace("-", "")


def test_the_published_gain_by_concurrency_is_that_of_the_catalog() -> None:
    shown = rows("dflash.md", r"concurrency \d+")
    assert len(shown) == 3
    for at, without, drafted, ratio in shown:
        (one,) = (
            one
            for one in SPEEDS
            if (plain(one.workload), one.draft_tokens) == ("math500", 15) and one.concurrency == int(at.split()[1])
        )
        assert one.plain is not None
        assert [without.removesuffix(" tokens/s"), drafted] == [f"{one.plain:g}", f"{one.dflash:g}"]
        assert ratio == f"{one.dflash / one.plain:.1f}"


def test_the_published_acceptance_lengths_are_those_of_the_catalog() -> None:
    known = {(plain(one.workload), one.draft_tokens): one.acceptance_length for one in SPEEDS if one.concurrency == 1}
    shown = rows("acceptance.md", r"HumanEval|MATH-500|MBPP|GSM8K|MT-Bench")
    assert len(shown) == 5
    for workload, seven, fifteen in shown:
        assert [float(seven), float(fifteen)] == [known[plain(workload), 7], known[plain(workload), 15]]


def test_the_constants_of_the_speed_model_are_those_of_the_program() -> None:
    page = text("speed-model.md")
    for stated in (
        f"({speed.BANDWIDTH_REACHED:g} x bandwidth) + {speed.STEP_OVERHEAD * 1000:g} ms",
        f"({speed.ARITHMETIC_REACHED:g} x arithmetic) + {speed.SEQUENCE_OVERHEAD * 1000:g} ms x sequences",
        f"its arithmetic and {speed.DRAFT_OVERHEAD * 1000:g} ms",
        f"{speed.SPREAD:.0%}".replace("%", " %"),
    ):
        assert stated in page


def test_the_errors_of_the_speed_model_are_those_of_its_comparison() -> None:
    every = list(compared())
    fitted = [row for row in every if row.fitted]
    others = [row for row in every if not row.fitted]
    page = text("speed-model.md")
    assert f"fitted to {len(fitted)} published speeds" in page
    assert f"(median error {median_error(fitted):.0%})".replace("%", " %") in page
    assert f"The error is {median_error(others):.0%} for {len(others)} speeds".replace("%", " %") in page


@pytest.mark.parametrize(
    "stated", [f"*good* from {WEAK_BELOW:g} on", f"*weak* from {BROKEN_BELOW:g} on", f"below {DECAYED:.0%} of the best"]
)
def test_the_grades_of_acceptance_are_those_of_the_checks(stated: str) -> None:
    assert stated.replace("%", " %") in text("acceptance.md")
