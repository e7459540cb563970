"""Unified memory: what the engine gets, and what the system keeps."""

from dataclasses import replace
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import NotPossible
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES, SPARK, made_of

CATALOG = load_catalog()
SHARE = "GPU_MEMORY_UTILIZATION"
KEPT = 24


def planned(facts: HostFacts = SPARK, *, profile: str = "dgx-spark", **wishes: Any) -> Plan:
    return plan_deployment(facts, Choice(profile=profile, **wishes), CATALOG)


def system(plan: Plan) -> float:
    """GiB that remain for the system."""
    assert plan.memory is not None
    assert plan.memory.system_bytes is not None
    return plan.memory.system_bytes / GIB


def reason(plan: Plan, name: str = SHARE) -> str:
    return next(one.reason for one in plan.decisions if one.name == name)


@pytest.mark.parametrize("release", [choice.release for choice in CATALOG.profiles["dgx-spark"].engines])
def test_each_pair_leaves_the_system_its_part(release: str) -> None:
    seen = 0
    for pair in CATALOG.pairs:
        try:
            plan = planned(model=pair, engine=release)
        except NotPossible:
            continue
        seen += 1
        assert system(plan) >= KEPT, pair
        share = plan.settings.gpu_memory_utilization
        if plan.engine.kind.utilization is None:
            assert share is None
            continue
        assert share is not None
        assert 0.5 <= share <= 0.8, pair
        assert f"{system(plan):.1f} of 120.0 GiB remain for the system" in reason(plan), pair
        if not plan.errors:
            assert plan.memory is not None
            assert plan.memory.fits, pair
    assert seen


def test_the_share_follows_what_context_and_sequences_need() -> None:
    asked = {count: planned(engine="vllm-0.33", concurrency=count) for count in (1, 8, 64)}
    shares = [plan.settings.gpu_memory_utilization for plan in asked.values()]
    assert shares == sorted(shares, key=lambda share: share or 0)
    # nobody runs less than half, and the share of the playbook is the most
    assert shares[0] == 0.5
    assert "the least that others run" in reason(asked[1])
    assert shares[-1] == 0.7
    assert "the engine gets the profile's share" in reason(asked[64])
    small = planned(engine="vllm-0.33", concurrency=4, max_model_len=131072)
    assert "room for 4 sequences of 131072 tokens" in reason(small)
    aeon = planned(recipe="aeon")
    assert "would take the 24 GiB that it needs" in reason(aeon)


def test_sglang_s_share_leaves_room_for_activations_too() -> None:
    plan = planned(model="qwen3.5-122b-a10b-int4-fp8", engine="sglang")
    assert plan.memory is not None
    assert 120 * GIB - plan.memory.budget_bytes - plan.memory.reserve_bytes == plan.memory.system_bytes
    assert system(plan) >= KEPT


def test_a_smaller_machine_keeps_as_much() -> None:
    assert system(planned(replace(SPARK, memory_total=96 * GIB))) >= KEPT


def test_thor_is_such_a_machine() -> None:
    thor = made_of(CATALOG.profile("thor"))
    assert system(planned(thor, profile="thor", model="qwen3.5-27b-fp8")) >= KEPT


def test_two_machines_keep_their_part_each() -> None:
    assert system(planned(profile="dgx-spark-x2", master_addr="10.0.0.1")) >= KEPT


def test_a_context_is_shortened_with_the_reason() -> None:
    plan = planned(replace(SPARK, memory_total=98 * GIB), model="gemma-4-31b-it-bf16", engine="vllm-0.33")
    assert plan.settings.max_model_len is not None
    assert plan.settings.max_model_len < 131072
    assert "beside the weights and the 24 GiB of the system" in reason(plan, "MAX_MODEL_LEN")
    assert not plan.errors


def test_a_context_that_was_asked_for_is_refused_if_it_takes_the_part_of_the_system() -> None:
    smaller = replace(SPARK, memory_total=98 * GIB)
    plan = planned(smaller, model="gemma-4-31b-it-bf16", engine="vllm-0.33", max_model_len=262144)
    found = next(one for one in plan.errors if one.id == "sequence-does-not-fit")
    assert "24 GiB" in found.message
    assert "MAX_MODEL_LEN" in found.fix
    # on another GPU the engine refuses it by itself
    card = plan_deployment(MACHINES["rtx-3090"], Choice(profile="rtx-3090", max_model_len=262144), CATALOG)
    assert not [one for one in card.errors if one.id == "sequence-does-not-fit"]


def test_a_share_of_the_user_s_own_is_warned_about() -> None:
    plan = planned(edited={SHARE: "0.85"})
    found = next(one for one in plan.findings if one.id == "memory-overcommitted")
    assert (found.severity, round(system(plan), 1)) == ("warning", 18.0)
    assert "18.0 GiB" in found.message
    assert not [one for one in planned(edited={SHARE: "0.8"}).findings if one.id == "memory-overcommitted"]


def test_an_empty_share_would_be_the_engine_s_own() -> None:
    found = next(one for one in planned(edited={SHARE: ""}).errors if one.id == "memory-overcommitted")
    assert "0.92" in found.message


def test_the_system_has_memory_of_its_own_beside_other_gpus() -> None:
    memory = planned(MACHINES["h100"], profile="h100").memory
    assert memory is not None
    assert memory.system_bytes is None


@pytest.mark.parametrize("memory", [1, 1000, 2**27, 2**30, 2**31, 2**34])
@pytest.mark.parametrize("engine", [None, "vllm", "sglang", "llamacpp"])
def test_a_machine_that_is_too_small_is_planned_or_refused_in_words(memory: int, engine: str | None) -> None:
    tiny = replace(MACHINES["dgx-spark"], memory_total=memory)
    made = plan_deployment(tiny, Choice(profile="dgx-spark", engine=engine), CATALOG)
    assert made.memory is not None
    assert made.memory.fits or made.errors
    assert made.settings.gpu_memory_utilization != 0
