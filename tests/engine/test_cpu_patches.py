"""The CPU engine's patched modules against their definitions, and the same modules without the patches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve.engines.installed import CPU_SITE, package_directory

ROOT = Path(__file__).parents[2]
NEAR = 0.01
"""Largest deviation of BF16 sums of these sizes; a lost state deviates by more than 0.1."""


def played(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a script of tests/support printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{script}", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(CPU_SITE), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=1200,
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
    said = played("gdn_steps", branch)
    print(said)
    assert said["worst"] < NEAR


def test_each_draft_token_is_sampled_as_its_request_asked() -> None:
    assert played("sampler_steps") == {"wrong": 0, "error": ""}


def test_the_processes_of_the_engine_wait_without_yielding() -> None:
    """Seen with Linux 6.18 on two cores: behind such a loop the API server stopped for up to 14 s."""
    assert not played("yielding")["yields"]


def test_the_patched_wait_is_the_only_one_that_yields() -> None:
    """Core and workers, also the several workers of tensor parallelism, wait with the function of one module."""
    package = package_directory("vllm")
    assert package is not None
    files = [file for file in package.rglob("*.py") if "os.sched_yield(" in file.read_text(encoding="utf-8")]
    assert [str(file.relative_to(package)) for file in files] == ["distributed/utils.py"]


def test_the_installed_release_still_needs_the_patches() -> None:
    assert played("yielding", "unpatched")["yields"]
    assert "must match the size of tensor b" in played("gdn_steps", "unpatched")["died"]
    assert played("gdn_steps", "unpatched", "rejecting")["worst"] > 10 * NEAR
    unpatched = played("sampler_steps", "unpatched")
    # memory that nothing has written may hold the right values by chance
    assert unpatched["wrong"] > 100
    assert "Expected reduction dim" in unpatched["error"]
