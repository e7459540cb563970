"""How a machine is shared out to several engines, and what each of them gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.door.site import Plain
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host.ask import ContainerEngine
from dflash_deploy.host.gpu import Thread
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.replicas import engine_port, gpus_of_member, member_of, router_port
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.native import door_of
from tests.support.machines import DOCKER, H100, RECORDED, RTX_3090, machine

SMALL = "qwen3.6-27b-int4"


def planned(choice: Choice, facts: HostFacts) -> Plan:
    return plan_deployment(facts, choice, load_catalog())


def reason(plan: Plan) -> str:
    return next(decision.reason for decision in plan.decisions if decision.name == "REPLICAS")


def eight_h100() -> HostFacts:
    return machine(*(replace(H100, index=index) for index in range(8)))


def four_3090() -> HostFacts:
    return machine(*(replace(RTX_3090, index=index) for index in range(4)))


def test_one_engine_is_as_it_was() -> None:
    plan = planned(Choice(runtime="compose"), RECORDED["h100"])
    assert not plan.settings.several_engines
    assert not plan.values.get("REPLICAS")


def test_a_model_that_fits_one_gpu_gets_an_engine_for_each() -> None:
    plan = planned(Choice(profile="h100", replicas="auto", runtime="native"), eight_h100())
    assert plan.settings.replicas == 8
    assert (plan.settings.tensor_parallel_size or 1) == 1
    assert not plan.errors
    # both figures of the speed model are in the reason
    assert "one engine over 8 GPUs" in reason(plan)
    gpus = [gpus_of_member(plan, number) for number in range(1, 9)]
    assert gpus == [(str(index),) for index in range(8)]


def test_a_model_that_needs_several_gpus_gets_groups() -> None:
    whole = planned(Choice(replicas="auto", runtime="native"), four_3090())
    groups = [gpus_of_member(whole, number) for number in range(1, whole.settings.replicas + 1)]
    each = whole.settings.tensor_parallel_size or 1
    assert whole.settings.replicas * each == 4
    assert {len(group) for group in groups} == {each}
    assert sorted(gpu for group in groups for gpu in group) == ["0", "1", "2", "3"]
    assert not [finding for finding in whole.errors if finding.id == "more-gpus-than-there-are"]


def test_engines_that_need_more_gpus_than_there_are_are_refused() -> None:
    plan = planned(Choice(edited={"REPLICAS": "3", "TENSOR_PARALLEL_SIZE": "2"}, runtime="native"), four_3090())
    assert "more-gpus-than-there-are" in {finding.id for finding in plan.errors}


def test_groups_of_gpus_that_env_asks_for_are_shared_out() -> None:
    edited = {"REPLICAS": "3", "TENSOR_PARALLEL_SIZE": "2"}
    plan = planned(Choice(profile="h100", edited=edited, runtime="native"), eight_h100())
    assert [gpus_of_member(plan, number) for number in (1, 2, 3)] == [("0", "1"), ("2", "3"), ("4", "5")]


def test_each_engine_has_its_own_address_and_gpus() -> None:
    plan = planned(Choice(profile="h100", replicas=2, runtime="native", port=9000, host="0.0.0.0"), eight_h100())
    one, two = member_of(plan, 1), member_of(plan, 2)
    for number, member in ((1, one), (2, two)):
        environment = engine_environment(member)
        assert environment["DFLASH_BIND"] == "127.0.0.1"
        assert environment["DFLASH_PORT"] == str(engine_port(9000, number))
        assert environment["CUDA_VISIBLE_DEVICES"] == str(number - 1)
        # another number of engines restarts none of them
        assert "REPLICAS" not in environment
        assert not member.settings.several_engines
    # the next port after the router's has its metrics
    ports = {9000, router_port(9000), router_port(9000) + 1, one.settings.dflash_port, two.settings.dflash_port}
    assert len(ports) == 5
    assert one.settings.max_num_seqs == plan.settings.max_num_seqs


def threads_of(cores: range) -> tuple[Thread, ...]:
    return tuple(Thread(0, core, core) for core in cores)


@pytest.mark.parametrize("cores", [range(2), range(7), range(64)])
def test_processor_cores_are_shared_out(cores: range) -> None:
    plan = planned(Choice(profile="cpu", replicas=2, runtime="native"), replace(RECORDED["cpu"], cpus=len(cores)))
    shares = [member_of(plan, number, threads_of(cores)).settings.dflash_cores for number in (1, 2)]
    assert sorted(core for share in shares for core in share) == list(cores)
    assert abs(len(shares[0]) - len(shares[1])) <= 1


def test_without_a_core_for_each_none_is_bound() -> None:
    plan = planned(Choice(profile="cpu", replicas=4, runtime="native"), RECORDED["cpu"])
    assert member_of(plan, 1, threads_of(range(2))).settings.dflash_cores == ()


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_on_processors_auto_is_one_engine_for_each_numa_node(nodes: int) -> None:
    facts = replace(RECORDED["cpu"], cpus=64, numa_nodes=nodes)
    plan = planned(Choice(profile="cpu", replicas="auto", runtime="native"), facts)
    assert plan.settings.replicas == nodes


@pytest.mark.parametrize("values", [{"REPLICAS": "0"}, {"REPLICAS": "65"}, {"REPLICAS": "4", "DFLASH_PORT": "65530"}])
def test_numbers_that_cannot_be_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(SettingsRefused):
        planned(Choice(profile="cpu", edited=values, runtime="native"), RECORDED["cpu"])


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "192.168.1.5"])
def test_several_engines_are_published_on_any_address_and_all_behind_the_door_is_private(bind: str) -> None:
    plan = planned(Choice(profile="h100", replicas=2, runtime="native", host=bind), eight_h100())
    assert not plan.errors
    door = door_of(Deployment(Path("/box")), plan.settings)
    assert door.site == Plain(bind, plan.settings.dflash_port)
    assert {address.partition(":")[0] for address in (door.router, *door.upstreams)} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("docker", "refused"),
    [
        (DOCKER, False),
        (replace(DOCKER, rootless=True), True),
        (replace(DOCKER, desktop=True), True),
        (replace(DOCKER, host="ssh://gpu-box"), True),
        (None, False),
    ],
)
def test_containers_that_this_machine_does_not_reach_are_refused(docker: ContainerEngine | None, refused: bool) -> None:
    facts = replace(eight_h100(), container_engine=docker)
    plan = planned(Choice(profile="h100", replicas=2, runtime="compose"), facts)
    assert ("several-engines-in-containers" in {finding.id for finding in plan.errors}) == refused
    single = planned(Choice(profile="h100", replicas=1, runtime="compose"), facts)
    assert "several-engines-in-containers" not in {finding.id for finding in single.errors}
