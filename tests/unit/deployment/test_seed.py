"""`init --profile dgx-spark --recipe aeon` means what the model card's Compose file means, its known mistakes aside."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import SPARK

SEED = Path(__file__).with_name("seeds") / "docker-compose.dflash.yml"

MISTAKES = {
    "MODEL_PATH": "a directory that is not mounted is taken for a repository, and downloaded for ever",
    "MAX_NUM_SEQS": "4 lets eight clients wait 14.7 s; the authors' later compose file says 16",
    "MAX_NUM_BATCHED_TOKENS": "65536 hung a DGX Spark (AEON-7/vllm-dflash#1)",
    "GPU_MEMORY_UTILIZATION": "0.85 leaves the system too little: at that share earlyoom ended other users' engines",
    "HF_TOKEN": "a token in the environment is shown by docker inspect; downloading is not the engine's business",
    "VLLM_API_KEY": "a key in the environment is shown by docker inspect",
}


@pytest.fixture
def seed() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(SEED.read_text())["services"]["vllm-dflash"]
    return service


@pytest.fixture
def ours(tmp_path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The rendered service, its variables resolved from `.env`, and the variables alone."""
    plan = plan_deployment(SPARK, Choice(profile="dgx-spark", recipe="aeon"), load_catalog())
    create(Deployment(tmp_path), plan)
    text = Deployment(tmp_path).compose_file.read_text()
    service: dict[str, Any] = yaml.safe_load(text)["services"]["engine"]
    values = Deployment(tmp_path).values
    environment = {
        name: values.get(name, value) if "$" in value else value for name, value in service["environment"].items()
    }
    return service, environment


def test_every_variable_of_the_seed_has_its_value_or_is_a_known_mistake(
    seed: dict[str, Any], ours: tuple[dict[str, Any], dict[str, str]]
) -> None:
    _, environment = ours
    theirs = dict(line.split("=", 1) for line in seed["environment"])
    differing = {name for name, value in theirs.items() if environment.get(name) != value}
    assert differing == set(MISTAKES)


def test_the_mistakes_are_mended(ours: tuple[dict[str, Any], dict[str, str]]) -> None:
    service, environment = ours
    assert environment["MODEL_PATH"] == "/models/target"
    assert (environment["MAX_NUM_SEQS"], environment["MAX_NUM_BATCHED_TOKENS"]) == ("16", "32768")
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & set(environment)
    assert "network_mode" not in service
    assert "ipc" not in service
    assert all(volume["type"] == "volume" or volume["read_only"] for volume in service["volumes"])


def test_gpus_restart_and_the_targets_weights_are_the_same(
    seed: dict[str, Any], ours: tuple[dict[str, Any], dict[str, str]]
) -> None:
    service, _ = ours
    assert service["deploy"] == seed["deploy"]
    assert service["restart"] == seed["restart"]
    assert service["ports"] == ["${DFLASH_BIND:-127.0.0.1}:${DFLASH_PORT:-8000}:8000"]
    target = next(volume for volume in service["volumes"] if volume["target"] == "/models/target")
    assert target["source"].startswith("${MODEL_HOST_PATH")
