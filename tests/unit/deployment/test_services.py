"""The Compose file of several engines: what each gets, what is published, and what changes an engine's label."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import (
    DOOR_LABEL,
    FINGERPRINT,
    ROUTER_LABEL,
    compose_text,
    create,
    render,
    rendered_fingerprint,
)
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import door_files, router_directory, router_keys
from dflash_deploy.door.caddyfile import caddyfile
from dflash_deploy.host.gpu import Thread
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.router.files import KEYS
from tests.support.machines import DOCKER, H100, RECORDED, machine

FOUR_H100 = machine(*(replace(H100, index=index) for index in range(4)), container_engine=DOCKER)


def planned(facts: HostFacts, **choice: Any) -> Plan:
    return plan_deployment(facts, Choice(runtime="compose", **choice), load_catalog())


def made(directory: Path, facts: HostFacts, **choice: Any) -> tuple[Deployment, Plan, dict[str, Any]]:
    plan = planned(facts, **choice)
    assert not plan.errors
    create(Deployment(directory), plan)
    deployment = Deployment(directory)
    return deployment, plan, yaml.safe_load(deployment.compose_file.read_text())


def on_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> HostFacts:
    threads = tuple(Thread(0, core, core) for core in range(count))
    monkeypatch.setattr("dflash_deploy.deployment.compose.threads_here", lambda: threads)
    return replace(RECORDED["cpu"], cpus=count)


def test_one_engine_has_no_router(tmp_path: Path) -> None:
    _, _, document = made(tmp_path, FOUR_H100, profile="h100", replicas=1)
    assert set(document["services"]) == {"engine"}
    assert "networks" not in document
    assert not (tmp_path / ".dflash/build/images/router").exists()


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_only_the_door_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    facts = FOUR_H100 if kind == "gpu" else on_cores(monkeypatch, 8)
    engine = {} if kind == "gpu" else {"engine": "llamacpp"}
    profile = "h100" if kind == "gpu" else "cpu"
    _, _, document = made(tmp_path, facts, profile=profile, replicas=count, **engine)
    services = document["services"]
    router, door = services.pop("router"), services.pop("door")
    assert list(services) == [f"engine-{number}" for number in range(1, count + 1)]
    assert door["ports"] == ["${DFLASH_BIND:-127.0.0.1}:${DFLASH_PORT:-8000}:8000"]
    assert set(door["networks"]) == {"default", "engines"}
    assert router["networks"] == ["engines"]
    # one image, which is built once
    assert router["image"] == door["image"]
    assert "build" not in door
    assert router["build"]["dockerfile"] == "images/router/Dockerfile"
    assert (tmp_path / ".dflash/build/images/router/Dockerfile").is_file()
    # they hold no secret of the deployment
    assert not [one for one in (router, door) if "secrets" in one]
    for service in (*services.values(), router):
        assert "ports" not in service
    for service in services.values():
        assert service["networks"] == ["engines"]
        assert service["secrets"] == ["dotenv"]
        assert service["restart"] == "unless-stopped"
        assert service["image"] == services["engine-1"]["image"]
    for field in ("user", "read_only", "cap_drop", "security_opt", "init", "restart", "logging"):
        assert router[field] == door[field] == services["engine-1"][field]
    # the volume of caches is shared, and the memory of the health check is not
    assert len({service["environment"]["DFLASH_HEALTH_FILE"] for service in services.values()}) == count
    assert len({service["labels"][FINGERPRINT] for service in services.values()}) == count


@pytest.mark.parametrize(("count", "each"), [(4, 1), (2, 2)])
def test_each_engine_has_its_gpus(tmp_path: Path, count: int, each: int) -> None:
    edited = {"REPLICAS": str(count), "TENSOR_PARALLEL_SIZE": str(each)}
    _, _, document = made(tmp_path, FOUR_H100, profile="h100", edited=edited)
    shares = []
    for number in range(1, count + 1):
        service = document["services"][f"engine-{number}"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert "count" not in device
        assert service["environment"]["NVIDIA_VISIBLE_DEVICES"] == ",".join(device["device_ids"])
        # the container counts its GPUs from 0
        assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & set(service["environment"])
        shares += device["device_ids"]
        assert len(device["device_ids"]) == each
    assert shares == ["0", "1", "2", "3"]
    assert not [name for name in ("router", "door") if "deploy" in document["services"][name]]


@pytest.mark.parametrize("cores", [2, 7])
def test_each_engine_has_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    facts = on_cores(monkeypatch, cores)
    _, _, document = made(tmp_path, facts, profile="cpu", engine="llamacpp", replicas=2)
    shares = [document["services"][f"engine-{number}"] for number in (1, 2)]
    assert [share["cpuset"] for share in shares] == [share["environment"]["DFLASH_CORES"] for share in shares]
    numbers = [int(core) for share in shares for core in share["cpuset"].split(",")]
    assert sorted(numbers) == list(range(cores))


def test_an_engine_restarts_for_settings_and_the_key_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = on_cores(monkeypatch, 2)
    deployment, _, _ = made(tmp_path, facts, profile="cpu", engine="llamacpp", replicas=2)

    def labels() -> tuple[str, str]:
        now = Deployment(tmp_path)
        render(now, plan_deployment(facts, Choice(edited=now.values), load_catalog()))
        return rendered_fingerprint(now, "engine-1"), rendered_fingerprint(now, "engine-2")

    first = labels()
    assert all(first)
    assert labels() == first
    deployment.with_values({"DRAIN_SECONDS": "30"})
    assert labels() == first
    deployment.with_values({"ENABLE_THINKING": "off"})
    second = labels()
    assert not set(second) & set(first)
    Deployment(tmp_path).with_new_key()
    assert not set(labels()) & set(second)
    assert rendered_fingerprint(Deployment(tmp_path), "engine-3") == ""
    deployment.compose_file.write_text("services: [")
    assert rendered_fingerprint(Deployment(tmp_path), "engine-1") == ""


def test_an_engine_restarts_for_the_users_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = on_cores(monkeypatch, 2)
    deployment, _, _ = made(tmp_path, facts, profile="cpu", engine="llamacpp", replicas=2)

    def label() -> str:
        now = Deployment(tmp_path)
        render(now, plan_deployment(facts, Choice(edited=now.values), load_catalog()))
        return rendered_fingerprint(now, "engine-1")

    without = label()
    deployment.override_file.write_text("services: {engine-1: {environment: {LEVEL: $LEVEL}}}\n")
    added = label()
    assert added != without
    assert label() == added
    with deployment.env_file.open("a") as file:
        file.write("LEVEL=3\n")
    assert label() != added
    deployment.override_file.unlink()
    assert label() == without


def test_neither_the_key_nor_those_of_the_router_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = on_cores(monkeypatch, 2)
    deployment, plan, _ = made(tmp_path, facts, profile="cpu", engine="llamacpp", replicas=2)
    text = compose_text(deployment, plan)
    keys = (tmp_path / ".dflash/router/keys.json").read_text()
    assert deployment.key.reveal() not in text
    assert not [word for word in keys.split('"') if len(word) > 20 and word in text]
    assert deployment.key.reveal() not in keys


def test_the_door_is_created_again_for_what_its_configuration_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, FOUR_H100, profile="h100", replicas=2)

    def door(**edited: str) -> tuple[str, str]:
        plan = planned(FOUR_H100, profile="h100", edited=edited)
        document = yaml.safe_load(compose_text(Deployment(tmp_path), plan))
        return document["services"]["door"]["labels"]["dev.dflash.door"], "".join(
            door_files(Deployment(tmp_path), plan.settings).values()
        )

    labels, texts = zip(
        door(REPLICAS="2"),
        door(REPLICAS="4"),
        door(REPLICAS="2", MAX_BODY_MIB="7"),
        door(REPLICAS="2", ALLOWED_ORIGINS="https://chat.example"),
        strict=True,
    )
    assert len(set(labels)) == len(set(texts)) == 4
    assert "bind 0.0.0.0" in texts[0]
    assert "reverse_proxy router:8000 {" in texts[0]
    assert "reverse_proxy engine-1:8000 engine-2:8000 {" in texts[0]
    assert door(REPLICAS="2", MAX_NUM_SEQS="3") == (labels[0], texts[0])
    # as a newer release writes it, for the same settings
    monkeypatch.setattr("dflash_deploy.door.caddyfile.caddyfile", lambda door: f"# newer\n{caddyfile(door)}")
    label, text = door(REPLICAS="2")
    assert text != texts[0]
    assert label not in labels


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"DFLASH_DRAFTER": "off"}, {"DFLASH_DRAFTER": "off"}),
        ({"DFLASH_NUM_SPEC_TOKENS": "3"}, {"DFLASH_DRAFTER": "${DFLASH_DRAFTER:-off}", "DFLASH_NUM_SPEC_TOKENS": "3"}),
        (
            {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"},
            {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"},
        ),
        # Compose expands a single $
        ({"EXTRA_ARGS": "--seed $x"}, {"EXTRA_ARGS": "--seed $$x"}),
    ],
)
def test_a_plan_for_a_while_counts_more_than_the_file_of_settings(
    tmp_path: Path, changes: dict[str, str], wanted: dict[str, str]
) -> None:
    made(tmp_path, FOUR_H100, profile="h100", replicas=1, edited={"EXTRA_ARGS": "--seed 1"})
    deployment = Deployment(tmp_path)
    plan = planned(FOUR_H100, edited={**deployment.values, **changes})
    environment = yaml.safe_load(compose_text(deployment, plan))["services"]["engine"]["environment"]
    assert wanted.items() <= environment.items()


def test_the_router_of_a_fleet_sends_to_the_engine_here_and_to_those_of_other_hosts(tmp_path: Path) -> None:
    others = ("10.9.0.2:8000", "10.9.0.3:8000")
    deployment, plan, document = made(
        tmp_path, FOUR_H100, profile="h100", replicas=1, edited={"ROUTER_ENGINES": ",".join(others)}
    )
    assert set(document["services"]) == {"engine-1", "router", "door"}
    # an internal network would have no way to the other hosts
    assert not any((network or {}).get("internal") for network in document["networks"].values())
    # the engine here has all GPUs of its machine
    engine = document["services"]["engine-1"]
    assert "device_ids" not in engine["deploy"]["resources"]["reservations"]["devices"][0]
    assert "ROUTER_ENGINES" not in engine["environment"]
    assert "ports" not in engine
    text = door_files(deployment, plan.settings)["Caddyfile"]
    for address in ("engine-1:8000", *others):
        assert address in text
    # another list starts the door again, and no engine
    door, label = (document["services"][name]["labels"] for name in ("door", "engine-1"))
    edited = {"ROUTER_ENGINES": others[0]}
    assert render(deployment, planned(FOUR_H100, profile="h100", replicas=1, edited=edited))
    fewer = yaml.safe_load(deployment.compose_file.read_text())
    assert fewer["services"]["door"]["labels"][DOOR_LABEL] != door[DOOR_LABEL]
    assert fewer["services"]["engine-1"]["labels"][FINGERPRINT] == label[FINGERPRINT]


def test_the_mtp_head_reaches_the_container(tmp_path: Path) -> None:
    edited = {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"}
    _, _, document = made(tmp_path, FOUR_H100, profile="h100", replicas=1, edited=edited)
    environment = document["services"]["engine"]["environment"]
    assert environment["DFLASH_DRAFTER"] == "${DFLASH_DRAFTER:-mtp}"
    assert environment["DFLASH_NUM_SPEC_TOKENS"] == "${DFLASH_NUM_SPEC_TOKENS:-}"
    assert "DRAFTER_PATH" not in environment


def test_the_router_starts_again_with_other_keys_and_its_label_does_not_have_them(tmp_path: Path) -> None:
    deployment, plan, document = made(tmp_path, FOUR_H100, profile="h100", replicas=2)
    keys = router_keys(deployment)
    assert keys is not None
    before = document["services"]["router"]["labels"][ROUTER_LABEL]
    assert not render(deployment, plan)
    plain = {hashlib.sha256("\n".join((keys.admin, keys.probe)).encode()).hexdigest()[:12], keys.admin, keys.probe}
    assert before not in plain
    (router_directory(deployment) / KEYS).unlink()
    assert render(deployment, plan)
    after = yaml.safe_load(deployment.compose_file.read_text())["services"]["router"]["labels"][ROUTER_LABEL]
    assert after != before
