"""`make demo ENGINE=llamacpp`: its target answers as the tiny one, bit for bit, and costs enough for drafts to pay."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.deepen import PROJECTOR, SAID, TARGET, TINY, deepen
from tests.support.cli import dflash, edit_env
from tests.support.command_server import ROOT
from tests.support.llamacpp_native import connect, started
from tests.support.ports import free_port

# One that the tiny pair knows by heart, and one that it does not know: its choices there are close calls.
QUESTIONS = ("Count from 1 to 40.", "Why do whales sing to each other in the dark?")


def probabilities(directory: Path) -> list[object]:
    """For each token of the answers the logarithms of the five greatest probabilities, as the engine prints them."""
    with connect(directory) as endpoint:
        answers = [endpoint.chat(question, max_tokens=60, logprobs=True, top_logprobs=5) for question in QUESTIONS]
    return [answer.logprobs["content"] for answer in answers]


@pytest.mark.slow
def test_the_deeper_target_has_the_same_probabilities_to_the_last_bit(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    shutil.copy(TINY / PROJECTOR, weights)
    deepen(TINY / TARGET, weights / TARGET)
    assert (weights / TARGET).stat().st_size > 10 * (TINY / TARGET).stat().st_size
    (tmp_path / "box").mkdir()
    # rejected drafts are verified in other batches, which round differently: the target by itself has one way
    with started(tmp_path / "box", "--no-drafter") as directory:
        tiny = probabilities(directory)
        edit_env(directory, MODEL_HOST_PATH=str(weights))
        dflash("up", at=directory).succeeded()
        assert probabilities(directory) == tiny


@pytest.mark.slow
def test_the_demo_ends_with_what_drafts_are_worth(tmp_path: Path) -> None:
    demo, port = tmp_path / "demo", free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    # in the environment of the tests
    chosen = ("ENGINE=llamacpp", f"DEMO={demo}", f"DEMO_VENV={sys.prefix}", f"PORT={port}")
    made = ("make", "--no-print-directory", "-o", f"{sys.prefix}/.ready", "demo", *chosen)
    try:
        ran = subprocess.run(made, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        dflash("down", "--dir", str(demo), at=ROOT).succeeded()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert SAID in ran.stdout
    assert "6 checks passed" in ran.stdout
    # by how much depends on what else runs here
    assert re.search(r"^verdict    own: drafts .* at concurrency 1 \([\d.]+ times\)$", ran.stdout, re.M)
