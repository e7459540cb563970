"""Data parallelism: how many copies of the engine share a machine, and why."""

import re
from dataclasses import replace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.plan import why_lines
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice, Goal, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import H100, MACHINES, RECORDED, RTX_3090, machine

EIGHT_H100 = machine(*(replace(H100, index=index) for index in range(8)))
DENSE = "qwen3.8-27b-fp8"
TWO_3090 = machine(*(replace(RTX_3090, index=index) for index in range(2)))


def planned(choice: Choice, facts: HostFacts) -> Plan:
    return plan_deployment(facts, choice, load_catalog())


def reason(plan: Plan) -> str:
    return next(decision.reason for decision in plan.decisions if decision.name == "DATA_PARALLEL_SIZE")


def sizes(plan: Plan) -> tuple[int, int]:
    return plan.settings.data_parallel_size, plan.settings.tensor_parallel_size or 1


@pytest.mark.parametrize("goal", [None, "latency", "context", "coding"])
def test_one_answer_at_a_time_is_split_over_all_gpus(goal: Goal | None) -> None:
    plan = planned(Choice(goal=goal, runtime="compose"), EIGHT_H100)
    assert sizes(plan) == (1, 8)
    assert "--data-parallel-size" not in engine_command(plan)


def test_for_throughput_each_gpu_gets_a_copy_of_a_model_that_fits_it() -> None:
    plan = planned(Choice(model=DENSE, goal="throughput", runtime="compose"), EIGHT_H100)
    assert sizes(plan) == (8, 1)
    assert plan.errors == ()
    # both ways are in the reason, and how to choose the other one
    assert "split over 8 GPUs" in reason(plan)
    assert reason(plan).endswith("set DATA_PARALLEL_SIZE=1 and TENSOR_PARALLEL_SIZE=8")
    command = engine_command(plan)
    at = command.index("--data-parallel-size")
    assert command[at : at + 4] == ["--data-parallel-size", "8", "--api-server-count", "1"]
    # the memory is that of one GPU with a whole model
    assert plan.memory is not None
    assert plan.memory.target_bytes == plan.pair.target.bytes
    # the last figures are those of all copies
    assert plan.speed[-1].concurrency == 8 * (plan.settings.max_num_seqs or 4)
    # a plan that is made again from .env is the same
    again = planned(Choice(edited=plan.values, runtime="compose"), EIGHT_H100)
    assert again.settings == plan.settings


@pytest.mark.parametrize(("concurrency", "expected"), [(1, (1, 8)), (2, (1, 8)), (128, (8, 1))])
def test_what_has_more_tokens_at_the_concurrency_is_chosen(concurrency: int, expected: tuple[int, int]) -> None:
    plan = planned(Choice(model=DENSE, goal="throughput", concurrency=concurrency, runtime="compose"), EIGHT_H100)
    assert sizes(plan) == expected
    # both figures are in the reason, the larger one first
    figures = [int(word) for word in re.findall(r"(?:: |and )(\d+)(?: tokens/s| with|, less)", reason(plan))]
    assert figures[0] >= figures[1]


@pytest.mark.parametrize(("goal", "lines"), [("throughput", 1), (None, 0)])
def test_the_plan_says_under_the_models_why_copies(goal: Goal | None, lines: int) -> None:
    plan = planned(Choice(model=DENSE, goal=goal, runtime="compose"), EIGHT_H100)
    said = [line for line in why_lines((), plan) if "DATA_PARALLEL_SIZE=8" in line]
    assert len(said) == lines
    assert list(why_lines((), plan)) == said


def test_a_model_that_needs_two_gpus_gets_copies_on_two() -> None:
    plan = planned(Choice(goal="throughput", model="qwen3.5-27b-int4-autoround", runtime="compose"), TWO_3090)
    copies, gpus = sizes(plan)
    assert copies * gpus == 2


def test_experts_are_not_divided_over_copies_unless_env_asks() -> None:
    choice = Choice(profile="b200-x8", model="kimi-k2.5-nvfp4", goal="throughput", runtime="compose")
    assert sizes(planned(choice, MACHINES["b200-x8"])) == (1, 8)


def test_the_number_in_env_counts_also_beyond_the_profile() -> None:
    plan = planned(Choice(profile="h100", edited={"DATA_PARALLEL_SIZE": "4"}, runtime="compose"), EIGHT_H100)
    assert (sizes(plan), plan.errors) == ((4, 1), ())
    assert plan.values["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    edited = {"DATA_PARALLEL_SIZE": "2", "TENSOR_PARALLEL_SIZE": "4"}
    assert sizes(planned(Choice(edited=edited, runtime="compose"), EIGHT_H100)) == (2, 4)


def test_env_with_the_gpus_of_one_copy_leaves_the_rest_to_copies() -> None:
    edited = {"TENSOR_PARALLEL_SIZE": "4"}
    assert sizes(planned(Choice(model=DENSE, goal="throughput", edited=edited, runtime="compose"), EIGHT_H100)) == (
        2,
        4,
    )
    edited = {"TENSOR_PARALLEL_SIZE": "8"}
    assert sizes(planned(Choice(model=DENSE, goal="throughput", edited=edited, runtime="compose"), EIGHT_H100)) == (
        1,
        8,
    )


def test_sglang_has_its_own_argument() -> None:
    choice = Choice(engine="sglang", edited={"DATA_PARALLEL_SIZE": "8"}, runtime="compose")
    command = engine_command(planned(choice, EIGHT_H100))
    assert command[command.index("--dp-size") + 1] == "8"
    assert command[command.index("--tp-size") + 1] == "1"


def test_copies_on_processors_share_the_memory() -> None:
    one, two = (
        planned(Choice(profile="cpu", engine="vllm", runtime="native", edited=edited), RECORDED["cpu"])
        for edited in ({}, {"DATA_PARALLEL_SIZE": "2"})
    )
    assert sizes(two) == (2, 1)
    assert two.errors == one.errors
    assert one.memory is not None
    assert two.memory is not None
    assert abs(two.memory.budget_bytes - one.memory.budget_bytes // 2) <= 1
    assert "share the cores and the memory" in reason(two)


def test_llamacpp_has_no_copies() -> None:
    plan = planned(Choice(profile="cpu", engine="llamacpp", goal="throughput", runtime="compose"), RECORDED["cpu"])
    assert "DATA_PARALLEL_SIZE" not in {decision.name for decision in plan.decisions}


@pytest.mark.parametrize("text", ["0", "65", "two"])
def test_numbers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(SettingsRefused, match="DATA_PARALLEL_SIZE"):
        planned(Choice(profile="cpu", engine="vllm", edited={"DATA_PARALLEL_SIZE": text}), RECORDED["cpu"])
