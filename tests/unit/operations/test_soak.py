"""What `test --soak` finds in planted series: errors, leaks, stalls, slower answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import CheckResult
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.operations.soak import Memory, Requests, caches_of, soak_checks
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES, RECORDED

MIB, GIB = 2**20, 2**30
SECONDS = range(1, 600)


def memory(size: Callable[[int], float] = lambda at: 0) -> Memory:
    """A GiB that wavers by 20 MiB, and what a function adds."""
    random = Random(1)
    return [(float(at), GIB + int(random.uniform(-1, 1) * 20 * MIB + size(at))) for at in SECONDS]


def requests(change: Callable[[int, TimedCompletion], TimedCompletion] = lambda at, one: one) -> Requests:
    """An answer each second, whose latency wavers by a tenth."""
    random = Random(1)
    made = []
    for at in SECONDS:
        ttft, tpot = 0.4 * random.uniform(0.9, 1.1), 0.02 * random.uniform(0.9, 1.1)
        one = TimedCompletion(ttft, ttft + 49 * tpot, [0.1] * 10, 100, 50)
        made.append((float(at), at % 5, change(at, one)))
    return made


def found(sizes: Memory | None = None, asked: Requests | None = None, caches: int = 0) -> dict[str, CheckResult]:
    checks = soak_checks(memory() if sizes is None else sizes, requests() if asked is None else asked, caches)
    return {check.name: check for check in checks}


def failures(checks: dict[str, CheckResult]) -> dict[str, str]:
    return {name: check.got for name, check in checks.items() if check.status == "failed"}


def test_a_sound_engine_passes_everything() -> None:
    assert {name: check.status for name, check in found().items()} == dict.fromkeys(
        ("errors", "memory", "stalls", "latency"), "passed"
    )


def test_a_leak_is_found_and_a_cache_that_fills_is_none() -> None:
    assert failures(found(memory(lambda at: at * MIB / 4))).keys() == {"memory"}
    assert "MiB" in failures(found(memory(lambda at: at * MIB)))["memory"]
    assert failures(found(memory(lambda at: min(at, 200) * 4 * MIB))) == {}
    filling = memory(lambda at: at * MIB)
    assert failures(found(filling, caches=GIB)) == {}
    assert failures(found(filling, caches=GIB // 4)).keys() == {"memory"}


def test_what_was_measured_too_shortly_is_skipped() -> None:
    few = found(memory()[:10], requests()[:10])
    assert (few["memory"].status, few["latency"].status, few["errors"].status) == ("skipped", "skipped", "passed")
    waited = requests(lambda at, one: replace(one, gaps=[18.3]) if at == 3 else one)
    assert found(asked=waited[:10])["stalls"].status == "skipped"
    none = found([], [])
    assert (none["memory"].got, none["stalls"].status, none["errors"].status) == ("unknown", "skipped", "failed")


def test_a_request_that_fails_is_named_with_its_time() -> None:
    asked = requests(lambda at, one: replace(one, problem="answered 500") if at == 90 else one)
    assert failures(found(asked=asked)) == {"errors": "1 of 599 requests failed, the first after 1.5 min: answered 500"}


def test_a_stall_is_found_and_prompts_that_take_seconds_are_none() -> None:
    stalled = requests(lambda at, one: replace(one, gaps=[0.1, 10.0]) if at == 300 else one)
    assert failures(found(asked=stalled)) == {
        "stalls": "10.0 s without a token, in an answer after 5.0 min (limit: 5.0 s)"
    }
    slow = requests(lambda at, one: replace(one, gaps=[9.0 if at % 5 else 2.0]))
    assert failures(found(asked=slow)) == {}


@pytest.mark.parametrize("begins", [0, 380])
def test_answers_that_become_slower_are_found(begins: int) -> None:
    slower = requests(lambda at, one: replace(one, seconds=one.ttft + 0.98 * (1 + max(at - begins, 0) / 200)))
    assert failures(found(asked=slower)).keys() == {"latency"}


@pytest.mark.parametrize("seed", range(20))
def test_few_answers_that_vary_much_are_no_drift(seed: int) -> None:
    random = Random(seed)
    # as vLLM on two cores: 51 answers in 2.6 minutes, whose TTFT depends on who else reads a prompt
    varying: Sequence[float] = [0.8 * random.lognormvariate(0, 0.7) for _ in range(51)]
    asked = [(3.0 * at, at % 5, TimedCompletion(ttft, ttft + 1, [0.1], 9, 50)) for at, ttft in enumerate(varying)]
    assert found(asked=asked)["latency"].status == "passed"


def test_caches_are_those_of_prompts_and_of_kv_on_a_processor() -> None:
    on_a_processor = plan_deployment(RECORDED["cpu"], Choice(profile="cpu", engine="vllm"), load_catalog())
    assert caches_of(on_a_processor) == int(1.1 * GIB * (on_a_processor.settings.vllm_cpu_kvcache_space or 0)) > 0
    gguf = plan_deployment(MACHINES["rtx-3090"], Choice(profile="rtx-3090", engine="llamacpp"), load_catalog())
    assert caches_of(gguf) == int(1.1 * MIB * gguf.settings.prompt_cache_mib) > 0
    assert caches_of(plan_deployment(MACHINES["h100"], Choice(profile="h100"), load_catalog())) == 0
