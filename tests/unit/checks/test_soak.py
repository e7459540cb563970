"""What `test --soak` finds in planted series: leaks, lost slots, dead drafts, stalls, errors, slower answers."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import CheckResult
from dflash_deploy.checks.soak import SoakLoad, SoakRequest, SoakSample, slope_of, soak_checks
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.operations.soak import caches_of, request_of
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES

MIB, GIB = 2**20, 2**30


def plan_for(profile: str) -> Plan:
    return plan_deployment(MACHINES[profile], Choice(profile=profile, runtime="compose"), load_catalog())


SLOTS = 4


def load(change: Callable[[SoakSample], SoakSample] = lambda one: one, *, minutes: int = 10, **fields: Any) -> SoakLoad:
    """A sound engine with four slots and a queue: its memory wavers by 20 MiB, its latency by a tenth."""
    random = Random(1)
    samples = [
        change(
            SoakSample(
                seconds=float(at),
                memory_bytes=GIB + int(random.uniform(-1, 1) * 20 * 2**20),
                gpu_bytes=20 * GIB,
                files=60 + random.randrange(5),
                processes=3,
                running=random.choice((SLOTS, SLOTS, SLOTS - 1)),
                waiting=random.choice((0, 1, 1)),
                kv_cache=0.4,
                generated=100 * at,
                drafts=30 * at,
            )
        )
        for at in range(1, 60 * minutes)
    ]
    requests = [
        SoakRequest(float(at), at % 5, 0.4 * random.uniform(0.9, 1.1), 0.02 * random.uniform(0.9, 1.1), 0.5, float(at))
        for at in range(60 * minutes)
    ]
    idle = SoakSample(0.0, running=0, waiting=0, kv_cache=0.0)
    return replace(SoakLoad(idle, samples, idle, requests, drafting=True), **fields)


def found(of: SoakLoad) -> dict[str, CheckResult]:
    return {check.name: check for check in soak_checks(of)}


def failures(of: SoakLoad) -> dict[str, str]:
    return {name: check.got for name, check in found(of).items() if check.status == "failed"}


def changed(**by_time: Callable[[float], Any]) -> Callable[[SoakSample], SoakSample]:
    return lambda one: replace(one, **{name: value(one.seconds) for name, value in by_time.items()})


def test_a_sound_engine_passes_everything() -> None:
    assert {check.status for check in soak_checks(load())} == {"passed"}


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_no_leak(seed: int) -> None:
    random = Random(seed)
    assert failures(load(lambda one: replace(one, memory_bytes=GIB + random.randrange(50 * 2**20)))) == {}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("memory", changed(memory_bytes=lambda at: GIB + int(at * 2**18) + int(math.sin(at) * 2**23))),
        ("GPU memory", changed(gpu_bytes=lambda at: 20 * GIB + int(at * 2**20))),
        ("open files", changed(files=lambda at: 60 + int(at / 20))),
        ("processes", changed(processes=lambda at: 3 + int(at / 100))),
    ],
)
def test_a_leak_is_found_with_its_slope(name: str, fault: Callable[[SoakSample], SoakSample]) -> None:
    said = failures(load(fault))
    assert said.keys() == {name}
    assert " ± " in said[name]
    assert "an hour" in said[name]
    assert "too short for a slope" in found(load(fault, minutes=1))[name].got


def test_a_leak_of_256_kib_a_second_has_that_slope() -> None:
    slope, half = slope_of([(float(at), at * 2.0**18 + (at % 7) * 2.0**20) for at in range(600)]) or (0.0, 0.0)
    assert slope == pytest.approx(2**18, rel=0.05)
    assert half < 0.1 * slope


def test_a_cache_that_fills_is_no_leak() -> None:
    full = changed(memory_bytes=lambda at: GIB + int(min(at, 200) * 2**22))
    assert failures(load(full)) == {}
    filling = changed(memory_bytes=lambda at: GIB + int(at * 2**20))
    assert failures(load(filling, caches=GIB)) == {}
    assert failures(load(filling, caches=GIB // 4)).keys() == {"memory"}


def test_a_slot_that_is_lost_each_50_requests_is_found_while_others_wait() -> None:
    # a request a second
    lost = changed(running=lambda at: max(SLOTS - int(at // 50), 1), waiting=lambda at: 2)
    assert failures(load(lost)) == {"sequences": "4 at once at first, 1 at the end"}


def test_a_slot_whose_request_never_ends_and_blocks_that_stay_are_found_after_the_load() -> None:
    after = SoakSample(600.0, running=2, waiting=0, kv_cache=0.2)
    assert failures(load(after=after)) == {
        "sequences": "2 still run without a client",
        "KV blocks": "0.0 % before, 20.0 % after",
    }


def test_fewer_requests_at_once_for_want_of_blocks_are_no_lost_slots() -> None:
    crowded = changed(running=lambda at: 4 if at < 300 else 3, waiting=lambda at: 1, kv_cache=lambda at: 0.97)
    assert failures(load(crowded)) == {}


def test_a_drafter_that_stops_is_found_with_its_time() -> None:
    stopped = changed(drafts=lambda at: int(min(at, 130) * 30))
    assert failures(load(stopped)) == {"drafts": "none after 2:10 min: 46900 tokens were generated without"}
    assert found(load(stopped, drafting=False))["drafts"].status == "skipped"


def test_an_engine_that_never_drafts_is_found() -> None:
    assert "drafts" in failures(load(changed(drafts=lambda at: 0)))


def test_a_stall_of_ten_seconds_each_five_minutes_is_found_once_for_all_who_wait() -> None:
    sound = load(minutes=12)
    stalls = [
        replace(sound.requests[at + n], silent=10.0, silent_at=at + n / 10) for at in (300, 600) for n in range(4)
    ]
    assert failures(replace(sound, requests=[*sound.requests, *stalls])) == {
        "stalls": "10.0 s, after 5:00 min; 2 of more than 5.0 s"
    }


def test_a_stall_of_a_busy_machine_is_named_so() -> None:
    # sixty minutes of both engines beside other work: 8 programs for each of two processors
    sound = load(lambda one: replace(one, load=7.5))
    assert failures(sound) == {}
    stall = replace(sound.requests[300], silent=10.0, silent_at=300.0)
    stalls = found(replace(sound, requests=[*sound.requests, stall]))["stalls"]
    assert stalls.got.endswith("; the machine was busy, with 7.5 programs for each processor")
    assert "no other programs" in stalls.hint


def test_prompts_that_take_seconds_are_no_stall() -> None:
    slow = [replace(one, silent=9.0 if one.turn else 2.0) for one in load().requests]
    assert failures(load(requests=slow)) == {}


def test_answers_that_become_slower_are_found() -> None:
    slower = [replace(one, tpot=(one.tpot or 0) * (1 + one.began / 400)) for one in load().requests]
    assert failures(load(requests=slower)).keys() == {"latency"}
    assert "TPOT 1.8" in failures(load(requests=slower))["latency"]


def test_an_engine_that_becomes_slower_late_is_found() -> None:
    late = [replace(one, ttft=one.ttft * (2 if one.began > 380 else 1)) for one in load().requests]
    assert failures(load(requests=late)).keys() == {"latency"}


@pytest.mark.parametrize("seed", range(20))
def test_few_answers_that_vary_much_are_no_drift(seed: int) -> None:
    random = Random(seed)
    # as vLLM on two cores: 51 answers in 2.6 minutes, whose TTFT depends on who else reads a prompt
    requests = [
        SoakRequest(3.0 * at, at % 5, 0.8 * random.lognormvariate(0, 0.7), 0.02, 0.5, 3.0 * at) for at in range(51)
    ]
    assert failures(load(requests=requests)) == {}


def test_a_request_that_fails_is_named_with_its_time() -> None:
    requests = [replace(one, problem="answered 500" if one.began == 77 else "") for one in load().requests]
    assert failures(load(requests=requests)) == {"errors": "1 of 600 failed, the first after 1:17 min: answered 500"}
    assert "errors" in failures(load(requests=()))


def test_an_engine_that_reports_nothing_is_judged_by_its_answers() -> None:
    bare = changed()
    silent = SoakSample(0.0)
    blind = load(lambda one: SoakSample(one.seconds), before=silent, after=silent)
    assert {name for name, check in found(blind).items() if check.status == "passed"} == {"errors", "stalls", "latency"}
    assert failures(load(bare)) == {}


def test_the_longest_silence_of_a_request_has_its_moment() -> None:
    one = request_of(100.0, 2, TimedCompletion(1.0, 14.0, [0.5, 10.0, 0.5], 10, 4))
    assert (one.silent, one.silent_at) == (10.0, 101.5)
    early = request_of(100.0, 2, TimedCompletion(3.0, 4.0, [0.5, 0.5], 10, 3))
    assert (early.silent, early.silent_at) == (3.0, 100.0)


def test_caches_are_those_of_prompts_and_of_kv_on_a_processor() -> None:
    on_a_processor, prompts = plan_for("cpu"), plan_for("rtx-3090")
    assert caches_of(on_a_processor) == int(1.1 * GIB * (on_a_processor.settings.vllm_cpu_kvcache_space or 0)) > 0
    assert caches_of(prompts) == int(1.1 * MIB * prompts.settings.prompt_cache_mib) > 0
    assert caches_of(plan_for("h100")) == 0
