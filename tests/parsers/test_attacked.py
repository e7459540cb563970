"""llama.cpp's endpoint under attack, natively at 1,024 files and behind Caddy with TLS: what `attacked` lists holds."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from tests.support import attacked
from tests.support.attacked import Endpoint
from tests.support.attackers import attacking
from tests.support.caddy import in_front_of
from tests.support.cli import dflash, edit_env
from tests.support.honest import load
from tests.support.llamacpp_native import processes
from tests.support.ports import free_port

LIMITED = "key-of-a-limited-client-01"
TOKENS = 200


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment whose processes begin with the usual soft limit of files."""
    directory, port = tmp_path_factory.mktemp("attacked"), free_port()
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(port))
    dflash("init", *told, at=directory).succeeded()
    keys = f"limited:{LIMITED}:tokens_per_minute={TOKENS}"
    edit_env(directory, DFLASH_API_KEYS=keys)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        dflash("up", at=directory).succeeded()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    yield directory
    dflash("down", at=directory).succeeded()


def process_of(directory: Path, module: str) -> int:
    (pid,) = [pid for pid, line in processes(directory).items() if f" -m {module} " in line]
    return pid


def native(directory: Path, key: str = "") -> Endpoint:
    key = key or Deployment.existing(directory).key.reveal()
    return Endpoint(f"http://127.0.0.1:{Deployment.existing(directory).values['DFLASH_PORT']}", key)


def test_the_gateway_holds(served: Path) -> None:
    attacked.holds(native(served), process_of(served, "dflash_deploy.serve.door"), half=1500)


def test_it_holds_behind_caddy(served: Path, tmp_path: Path) -> None:
    with in_front_of(native(served), tmp_path) as behind:
        attacked.holds(behind, process_of(served, "dflash_deploy.serve.door"), half=300)


def test_honest_clients_are_answered_as_before_under_attack(served: Path) -> None:
    """As `make bench` measures for ten minutes."""
    with attacking(native(served)):
        told = load(native(served), 4, lambda told: told.asked < 200)
    assert not told.failed
    assert not told.changed
    assert told.health


def test_a_burst_of_a_limited_key_stays_within_its_minute(served: Path) -> None:
    attacked.a_burst_stays_within_the_tokens_of_a_minute(native(served, LIMITED), TOKENS)
