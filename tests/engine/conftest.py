"""One real vLLM on the CPU with the tiny pair, started by the command line, shared by all tests of this tier."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt, load_prompts
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.vllm_forks import VllmForks, vllm_forks

FURTHER_KEY = "of-another-client-0123456789"  # A key of the shared server beside its first one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the engine; what starts one of its own goes before the shared one is up."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.engine)
    items.sort(key=lambda item: item in here and "server" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("native")
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=directory).succeeded()
    edit_env(directory, DFLASH_API_KEYS=FURTHER_KEY)
    yield Server(directory)
    dflash("down", at=directory).succeeded()


@pytest.fixture
def drafting(server: Server) -> Server:
    """The server with its drafter."""
    server.serve(drafting=True).close()
    return server


@pytest.fixture(scope="session")
def forks() -> Iterator[VllmForks]:
    """Programs that need vLLM's modules, and no engine."""
    with vllm_forks() as running:
        yield running


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    return load_prompts(asset("models/tiny/prompts.jsonl"))
