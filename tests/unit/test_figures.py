"""Numbers that the explanations state are those of the program and of the catalog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.speed_model import compared, summary, totals
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.acceptance import BROKEN_BELOW, WEAK_BELOW
from dflash_deploy.plan import speed
from dflash_deploy.startup.watch import DECAYED
from tools.reference.results import read

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
    reached = {name.upper(): f"{share:g}" for name, share in speed.ARITHMETIC_REACHED.items()}
    latency = {name: f"{seconds * 1000:g} ms" for name, seconds in speed.REDUCE_LATENCY.items()}
    verify = {name: f"{seconds * 1000:g} ms" for name, seconds in speed.VERIFY_OVERHEAD.items()}
    for stated in (
        f"{speed.LAYER_OVERHEAD * 1000:g} ms x layers + {speed.SEQUENCE_OVERHEAD * 1000:g} ms x sequences",
        f"{speed.DRAFT_OVERHEAD * 1000:g} ms",
        f"| {speed.BANDWIDTH_REACHED:g}, unified memory {speed.UNIFIED_REACHED:g} |",
        f"| {speed.EXPERTS_REACHED:g} |",
        "| " + ", ".join(f"{name} {share}" for name, share in reached.items()) + " |",
        f"vLLM and SGLang {verify['graph']}, llama.cpp {verify['launched']}, early releases {verify['early']}",
        f"NVLink {latency['nvlink']}, two GPUs on PCIe {latency['pair']}, else PCIe {latency['pcie']} and network "
        f"{latency['network']} per further GPU",
        f"{speed.WIDTH:g} times wide without drafts and {speed.WIDTH_OF_TEXT:g} times for one kind of text",
    ):
        assert stated in page, stated
    assert speed.OVERLAP == 3


def test_the_errors_of_the_speed_model_are_those_of_its_comparison() -> None:
    found = [
        [name, *(cell.replace("%", " %") for cell in summary(group))] for name, group in totals(compared()).items()
    ]
    assert rows("speed-model.md", "all|without a named reason|without drafts|DFlash|MTP") == found


def test_the_pages_say_whether_a_gpu_was_measured() -> None:
    on_gpus = [result for result in read().values() if result.machine.gpus]
    speeds = any(row.point.source.startswith("docs/results/") for row in compared())
    caches = any("planned-cache-tokens" in step.figures for result in on_gpus for step in result.steps)
    assert ("has not compared the predictions with a GPU" in " ".join(text("speed-model.md").split())) is not speeds
    assert ("has not compared the estimate with a GPU" in " ".join(text("memory.md").split())) is not caches


def test_the_errors_of_the_memory_estimate_are_those_of_its_comparison() -> None:
    errors = [row.error for row in memory.compared()]
    less, more = [error for error in errors if error <= 0], [error for error in errors if error > 0]
    ((_, few, span), (_, many, most)) = rows("memory.md", ".*than published.*")
    assert [few, many] == [str(len(less)), str(len(more))]
    assert span == f"{min(less):.0%} to {max(less):.0%}".replace("%", " %").replace("-0 %", "0 %")
    assert most == f"{max(more):+.0%}".replace("%", " %")


@pytest.mark.parametrize(
    "stated", [f"*good* from {WEAK_BELOW:g} on", f"*weak* from {BROKEN_BELOW:g} on", f"below {DECAYED:.0%} of the best"]
)
def test_the_grades_of_acceptance_are_those_of_the_checks(stated: str) -> None:
    assert stated.replace("%", " %") in text("acceptance.md")
