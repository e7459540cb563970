"""The CPU engine's patched modules against their definitions, and the same modules without the patches."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dflash_deploy.serve.engines.installed import package_directory
from tests.support.vllm_forks import VllmForks

NEAR = 0.01  # largest deviation of BF16 sums of these sizes; a lost state deviates by more than 0.1
Played = Callable[..., dict[str, Any]]


@pytest.fixture
def played(forks: VllmForks) -> Played:
    """The JSON that a script of tests/support printed in a fork."""

    def play(script: str, *arguments: str) -> dict[str, Any]:
        done = forks.run(f"import runpy; runpy.run_module('tests.support.{script}', run_name='__main__')", *arguments)
        assert done.returncode == 0, done.stderr[-2000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said

    return play


@pytest.mark.parametrize("branch", ["torch", "native"])
def test_the_state_is_that_of_the_accepted_tokens_whatever_the_steps_verify(branch: str, played: Played) -> None:
    import torch

    if branch == "native" and not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor has no AVX512_BF16, which the native kernel needs")
    said = played("gdn_steps", branch)
    print(said)
    assert said["worst"] < NEAR


def test_each_draft_token_is_sampled_as_its_request_asked(played: Played) -> None:
    assert played("sampler_steps") == {"wrong": 0, "error": ""}


def test_the_processes_of_the_engine_wait_without_yielding(played: Played) -> None:
    """Seen with Linux 6.18 on two cores: behind such a loop the API server stopped for up to 14 s."""
    assert not played("yielding")["yields"]


def test_the_patched_wait_is_the_only_one_that_yields() -> None:
    """Core and workers, also the several workers of tensor parallelism, wait with the function of one module."""
    package = package_directory("vllm")
    assert package is not None
    files = [file for file in package.rglob("*.py") if "os.sched_yield(" in file.read_text(encoding="utf-8")]
    assert [str(file.relative_to(package)) for file in files] == ["distributed/utils.py"]


def test_the_installed_release_starts_its_core_at_the_one_place_that_is_patched() -> None:
    package = package_directory("vllm")
    assert package is not None
    source = (package / "v1/engine/utils.py").read_text(encoding="utf-8")
    lines = ("from multiprocessing import connection\n", "        context = get_mp_context()\n")
    assert [source.count(line) for line in lines] == [1, 1]


def test_the_installed_release_still_needs_the_patches(played: Played) -> None:
    assert played("yielding", "unpatched")["yields"]
    assert "must match the size of tensor b" in played("gdn_steps", "unpatched")["died"]
    assert played("gdn_steps", "unpatched", "rejecting")["worst"] > 10 * NEAR
    unpatched = played("sampler_steps", "unpatched")
    # memory that nothing has written may hold the right values by chance
    assert unpatched["wrong"] > 100
    assert "Expected reduction dim" in unpatched["error"]
