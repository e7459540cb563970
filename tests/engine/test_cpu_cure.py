"""Steps that verify fewer draft tokens than the one before: in the layer that keeps a state, and in the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve.engines.installed import CPU_SITE

ROOT = Path(__file__).parents[2]
NEAR = 0.01
"""How far BF16 sums of these sizes lie apart at the most; a state that was lost is off by more than 0.1."""


def played(*arguments: str) -> dict[str, Any]:
    """What tests.support.gdn_steps printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.gdn_steps", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(CPU_SITE), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize("branch", ["torch", "native"])
def test_the_state_is_that_of_the_accepted_tokens_whatever_the_steps_verify(branch: str) -> None:
    import torch

    if branch == "native" and not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor has no AVX512_BF16, which the native kernel needs")
    said = played(branch)
    print(said)
    assert said["worst"] < NEAR


def test_the_installed_release_still_needs_the_cure() -> None:
    assert "must match the size of tensor b" in played("uncured")["died"]
    assert played("uncured", "rejecting")["worst"] > 10 * NEAR
