"""The shape of a fleet and its reason; the `.env` that a host gets."""

from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.dotenv import fill_template, parse
from dflash_deploy.errors import FleetRefused, NotPossible
from dflash_deploy.features.fleet.file import (
    Chosen,
    Fleet,
    FleetHost,
    Place,
    choose_shape,
    env_text,
    own_settings,
    shape_settings,
)
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED

A, B = FleetHost(name="a", address="10.0.0.1"), FleetHost(name="b", address="10.0.0.2")


def plan(profile: str, **choice: Any) -> Plan:
    return plan_deployment(RECORDED[profile], Choice(profile=profile, **choice), load_catalog())


def fleet(shape: str = "auto", *hosts: FleetHost) -> Fleet:
    return Fleet(shape=shape, hosts=hosts or (A, B))


@pytest.mark.parametrize(
    ("found", "made", "shape", "why"),
    [
        (fleet("auto", A), plan("dgx-spark"), "replicas", "there is one host"),
        (fleet(), plan("dgx-spark"), "replicas", "the model fits on one host"),
        (fleet(), plan("dgx-spark-x2", master_addr="10.0.0.1"), "one-engine", "NODES=2 in .env"),
        (fleet("replicas"), plan("dgx-spark-x2", master_addr="10.0.0.1"), "replicas", "fleet.yaml asks for it"),
        (fleet("one-engine"), plan("dgx-spark"), "one-engine", "fleet.yaml asks for it"),
        (fleet(), plan("dgx-spark", model="qwen3.5-122b-a10b-fp8"), "one-engine", "does not fit into the memory"),
    ],
)
def test_the_shape_and_why(found: Fleet, made: Plan, shape: str, why: str) -> None:
    chosen = choose_shape(found, made)
    assert chosen.shape == shape
    assert why in chosen.reason


def test_an_engine_of_one_machine_is_not_split() -> None:
    made = plan("cpu", engine="llamacpp", runtime="native")
    assert choose_shape(fleet(), made).shape == "replicas"
    with pytest.raises(NotPossible):
        choose_shape(fleet("one-engine"), made)


def test_each_rank_of_one_engine_gets_its_place() -> None:
    found, made = fleet("one-engine", A, FleetHost(name="b", address="y", role="leader")), plan("dgx-spark")
    chosen = choose_shape(found, made)
    settings = [shape_settings(found, chosen, made, host, "10.1.1.1") for host in found.ranked]
    assert [one.pop("NODE_RANK") for one in settings] == ["0", "1"]
    assert settings == [{"NODES": "2", "MASTER_ADDR": "10.1.1.1", "TENSOR_PARALLEL_SIZE": "2"}] * 2


def test_replicas_of_a_plan_for_two_machines_use_one_each() -> None:
    made = plan("dgx-spark-x2", master_addr="10.0.0.1")
    settings = shape_settings(fleet(), Chosen("replicas", ""), made, A, "")
    assert settings == {"NODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "", "TENSOR_PARALLEL_SIZE": ""}
    assert shape_settings(fleet(), Chosen("replicas", ""), plan("dgx-spark"), A, "") == {}


def test_settings_of_a_host_come_after_those_of_all() -> None:
    host = FleetHost(name="a", address="x", settings={"DFLASH_PORT": 8001, "ENFORCE_EAGER": True})
    found = Fleet(settings={"DFLASH_PORT": 8000, "NCCL_DEBUG": "INFO"}, hosts=(host,))
    assert own_settings(found, host) == {"DFLASH_PORT": "8001", "ENFORCE_EAGER": "on", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "DFLASH_API_KEYS", "MAX_MODELLEN", "x y", "EXTRA_ARGS"])
def test_secrets_and_unknown_settings_are_refused(name: str) -> None:
    host = FleetHost(name="a", address="x", settings={name: "it's $1"})
    with pytest.raises(FleetRefused) as raised:
        own_settings(Fleet(hosts=(host,)), host)
    assert "it's $1" not in raised.value.message or name == "EXTRA_ARGS"


HERE, THERE = Place("/home/me", "/home/me/src"), Place("/root", "/root/env/_assets")


def test_paths_are_those_of_the_host_and_all_else_stays() -> None:
    values = {
        "MODEL_HOST_PATH": "/home/me/models/27b",
        "DRAFTER_HOST_PATH": "/home/me/src/models/tiny",
        "DFLASH_DRAFTER": "z-lab/drafter",
        "VLLM_API_KEY": "k" * 43,
        "MAX_MODEL_LEN": "2048",
    }
    text = "# mine\n" + fill_template(values)
    written = env_text(text, values, HERE, THERE, {"NODES": "2", "MAX_MODEL_LEN": "2048"})
    assert written.startswith("# mine\n")
    found = parse(written)
    assert found["MODEL_HOST_PATH"] == "/root/models/27b"
    assert found["DRAFTER_HOST_PATH"] == "/root/env/_assets/models/tiny"
    assert found["DFLASH_DRAFTER"] == "z-lab/drafter"
    assert found["VLLM_API_KEY"] == "k" * 43
    assert found["NODES"] == "2"
    changed = {name for name, value in found.items() if value != parse(text).get(name)}
    assert changed == {"MODEL_HOST_PATH", "DRAFTER_HOST_PATH", "NODES"}


def test_a_directory_with_a_similar_name_is_not_the_home_directory() -> None:
    values = {"MODEL_HOST_PATH": "/home/me2/models"}
    assert parse(env_text("MODEL_HOST_PATH=/home/me2/models\n", values, HERE, THERE, {})) == values
