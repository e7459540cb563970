"""Engines on other machines behind the router of this one: who keeps a place, and what the door and a member know."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import door_of as door_in_container
from dflash_deploy.plan.replicas import member_of
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.native import door_of
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.members import foreign_of, is_foreign, sorted_out
from tests.support.machines import RECORDED

B, C = "10.9.0.2:8000", "10.9.0.3:8000"


def plan(profile: str = "cpu", **settings: str) -> Plan:
    edited = {"ROUTER_ENGINES": f"{B},{C}", **settings}
    engine = {"engine": "llamacpp", "runtime": "native"} if profile == "cpu" else {}
    choice = Choice(profile=profile, edited=edited, **engine)  # type: ignore[arg-type]
    return plan_deployment(replace(RECORDED[profile], cpus=4), choice, load_catalog())


def worker(address: str, *models: str) -> RoutedEngine:
    return RoutedEngine(address, f"http://{address}", models)


def test_one_engine_here_and_others_elsewhere_have_a_router() -> None:
    settings = plan().settings
    assert settings.several_engines
    assert settings.replicas == 1
    assert settings.routed_by == f"ROUTER_ENGINES={B},{C}"
    assert not Settings({}).several_engines


INVALID = ["10.9.0.2", "10.9.0.2:", "10.9.0.2:0", "10.9.0.2:70000", "a b:1", "http://x:1", "::1:8000"]


@pytest.mark.parametrize("text", INVALID)
def test_an_address_needs_a_host_and_a_port(text: str) -> None:
    with pytest.raises(Refused, match="ROUTER_ENGINES"):
        Settings({"ROUTER_ENGINES": text})


def test_the_engine_here_keeps_all_gpus_and_cores_and_knows_nothing_of_the_others() -> None:
    for made in (plan(), plan("dgx-spark")):
        own = member_of(made, 1)
        assert own.settings.router_engines == ()
        assert not own.settings.several_engines
        assert (own.settings.dflash_bind, own.settings.dflash_port) == ("127.0.0.1", 8003)
        for name in ("CUDA_VISIBLE_DEVICES", "DFLASH_CORES"):
            assert own.values.get(name, "") == made.values.get(name, "")


def test_the_door_sends_to_the_router_and_to_the_gateways_of_all() -> None:
    door = door_of(Deployment(Path("/box")), plan().settings)
    assert door.router == "127.0.0.1:8001"
    assert door.upstreams == ("127.0.0.1:8003", B, C)
    inside = door_in_container(plan("dgx-spark").settings)
    assert inside.upstreams == ("engine-1:8000", B, C)


def test_an_engine_that_gets_requests_keeps_them_and_a_new_one_must_prove_itself() -> None:
    wanted = foreign_of(plan())
    assert [one.id for one in wanted] == [B, C]
    listed = (worker("1"), wanted[0], worker("10.9.0.9:8000"))
    kept, new = sorted_out(listed, wanted)
    assert ([one.id for one in kept], [one.id for one in new]) == ([B], [C])
    assert sorted_out(listed, wanted, without=[B, C]) == ((), ())


def test_another_model_must_be_proven_again() -> None:
    wanted = foreign_of(plan(SERVED_MODEL_NAME="new"))
    assert sorted_out((worker(B, "old"),), wanted) == ((), wanted)


def test_engines_of_this_machine_have_numbers() -> None:
    assert [is_foreign(one) for one in (worker("1"), worker("12"), worker(B))] == [False, False, True]
