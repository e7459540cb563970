"""The router's keys, and which keys several engines accept while one is replaced."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import (
    forget_retired_key,
    make_router_keys,
    retire_key,
    router_directory,
    router_keys,
    write_workers,
    written_workers,
)
from dflash_deploy.deployment.keys import keys_file, write_keys
from dflash_deploy.redact import Secret
from dflash_deploy.serve.gateway.keys import Keyring
from dflash_deploy.serve.router.files import RoutedEngine

OLD, NEW = "the-old-key-of-the-owner", "the-new-key-of-the-owner"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    deployment = Deployment(tmp_path)
    deployment.write_env({"VLLM_API_KEY": OLD})
    return deployment


def scopes(deployment: Deployment, *keys: str) -> list[str | None]:
    """What an engine that started with the old key lets each key do."""
    environment = {"VLLM_API_KEY": OLD, "DFLASH_KEYS_FILE": str(keys_file(deployment))}
    ring = Keyring(environment)
    found = (ring.find(key.encode()) for key in keys)
    return [one.scope if one is not None else None for one in found]


def test_one_engine_has_no_keys_but_those_of_clients(deployment: Deployment) -> None:
    write_keys(deployment)
    assert json.loads(keys_file(deployment).read_text())["keys"] == []


def test_the_routers_key_opens_metrics_and_stays(deployment: Deployment) -> None:
    keys = make_router_keys(deployment)
    assert make_router_keys(deployment) == keys
    assert keys.admin != keys.probe
    assert (router_directory(deployment) / "keys.json").stat().st_mode & 0o777 == 0o600
    write_keys(deployment)
    assert scopes(deployment, keys.probe, keys.admin) == ["metrics", None]


def test_damaged_keys_of_the_router_are_made_again(deployment: Deployment) -> None:
    keys = make_router_keys(deployment)
    (router_directory(deployment) / "keys.json").write_text("{")
    assert router_keys(deployment) is None
    assert make_router_keys(deployment) != keys


def test_both_keys_of_the_owner_are_accepted_until_the_old_one_is_forgotten(deployment: Deployment) -> None:
    make_router_keys(deployment)
    retire_key(deployment)
    # before .env has it
    write_keys(deployment, coming=Secret(NEW))
    assert scopes(deployment, OLD, NEW) == ["all", "all"]
    replaced = deployment.with_new_key(Secret(NEW))
    write_keys(replaced)
    environment = {"VLLM_API_KEY": NEW, "DFLASH_KEYS_FILE": str(keys_file(replaced))}
    restarted = Keyring(environment)
    assert restarted.find(OLD.encode()) is not None
    forget_retired_key(replaced)
    write_keys(replaced)
    assert restarted.find(OLD.encode()) is None
    assert OLD not in keys_file(replaced).read_text()


def test_the_file_of_a_retired_key_has_its_digest_only(deployment: Deployment) -> None:
    retire_key(deployment)
    (file,) = [file for file in router_directory(deployment).iterdir() if file.is_file()]
    assert file.read_text() == sha256(OLD.encode()).hexdigest()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("not a digest")
    write_keys(deployment)


def test_the_list_of_engines_is_read_as_it_was_written(deployment: Deployment) -> None:
    assert written_workers(deployment) == ()
    engines = (RoutedEngine("1", "http://127.0.0.1:8002", ("tiny",)),)
    assert write_workers(deployment, engines)
    assert not write_workers(deployment, engines)
    assert written_workers(deployment) == engines
    (router_directory(deployment) / "workers.json").write_text("[]")
    assert written_workers(deployment) == ()
