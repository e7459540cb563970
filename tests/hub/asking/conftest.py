"""One deployment whose models are on a hub that counts bytes, and a scripted engine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.operations import ask_engine, up
from tests.support.asked import FILES, Engine, Fetching
from tests.support.box import Box
from tests.support.hub import Hub


@pytest.fixture(scope="package")
def hub() -> Iterator[Hub]:
    with Hub() as running:
        for repository, files in FILES.items():
            running.add(repository, files)
        yield running


@pytest.fixture(scope="package")
def made(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Box, str]:
    """The deployment of all tests, and its `.env` as `init` wrote it."""
    box = Box(hub, tmp_path_factory.mktemp("box"))
    return box, (box.directory / ".env").read_text()


@pytest.fixture
def box(hub: Hub, made: tuple[Box, str], monkeypatch: pytest.MonkeyPatch) -> Box:
    box, settings = made
    (box.directory / ".env").write_text(settings)
    (box.directory / "dflash.lock").unlink(missing_ok=True)
    (box.directory / ".dflash" / "asked").unlink(missing_ok=True)
    for directory in (box.models, Path(box.environment["HF_HOME"])):
        shutil.rmtree(directory, ignore_errors=True)
    for repository, files in FILES.items():
        hub.publish(repository, files)
    for name, value in box.environment.items():
        monkeypatch.setenv(name, value)
    hub.forget()
    return box


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    scripted = Engine()
    monkeypatch.setattr(ask_engine, "ask", scripted)
    return scripted


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download of weights raises Fetching."""

    def begin(*_: object, **__: object) -> None:
        raise Fetching

    monkeypatch.setattr(up, "fetch_missing", begin)
