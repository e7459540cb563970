"""One real SGLang on the processor with the tiny models, started by the command line, shared by the tests."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt, load_prompts
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.sglang_cpu import PROFILE, SITE, environment

# keys of the shared server beside its first one: of a client without a name, and of one with a name
FURTHER_KEY, ALICE_KEY = "of-another-client-0123456789", "of-alice-0123456789012345"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts an engine of its own goes before the shared one is up; then without drafts, then with them."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    order = ("server", "drafting")
    items.sort(key=lambda item: item in here and [name in getattr(item, "fixturenames", ()) for name in order])


@pytest.fixture(scope="session", autouse=True)
def installed() -> Iterator[None]:
    """SGLang as if it were installed, for the commands of this session."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    """A deployment of the test's own."""
    initialise(tmp_path)
    yield tmp_path
    dflash("down", at=tmp_path).succeeded()


def initialise(directory: Path) -> None:
    """Make a directory a deployment of SGLang with the tiny models."""
    port = str(free_port())
    dflash("init", "--profile", PROFILE, "--runtime", "native", "--port", port, at=directory).succeeded()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shared deployment."""
    directory = tmp_path_factory.mktemp("sglang")
    initialise(directory)
    edit_env(directory, DFLASH_API_KEYS=f"{FURTHER_KEY},alice:{ALICE_KEY}:in_flight=1")
    yield Server(directory)
    dflash("down", at=directory).succeeded()


@pytest.fixture
def drafting(server: Server) -> Server:
    """The server with its drafter."""
    server.serve(drafting=True).close()
    return server


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """The prompts that the tiny models were trained on."""
    return load_prompts(asset("models/tiny/prompts.jsonl"))


@pytest.fixture(scope="session")
def site() -> Any:
    """The patches, in force in this process too: they let torchvision be imported."""
    spec = importlib.util.spec_from_file_location("sglang_site", SITE / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.fixture(scope="session")
def transformers(site: ModuleType) -> Any:
    """The definitions of the models."""
    return importlib.import_module("transformers")
