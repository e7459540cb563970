"""vLLM's endpoint under attack: what `attacked` lists holds for uvicorn with the gateway inside."""

from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from tests.support import attacked
from tests.support.attacked import Endpoint
from tests.support.caddy import in_front_of
from tests.support.llamacpp_native import processes
from tests.support.server import Server


@pytest.fixture
def process(server: Server) -> int:
    """The process that reads the requests of an engine that is up."""
    server.serve(drafting=True).close()
    (found,) = [pid for pid, line in processes(server.directory).items() if " -m vllm.entrypoints" in line]
    return found


def native(server: Server) -> Endpoint:
    port = Deployment.existing(server.directory).values["DFLASH_PORT"]
    return Endpoint(f"http://127.0.0.1:{port}", server.key)


def test_the_gateway_holds(server: Server, process: int) -> None:
    attacked.holds(native(server), process, half=1500)


def test_it_holds_behind_caddy(server: Server, process: int, tmp_path: Path) -> None:
    with in_front_of(native(server), tmp_path) as behind:
        attacked.holds(behind, process, half=300)
