"""One deployment that answers, for all tests that only ask it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import dflash
from tests.support.llamacpp_native import init


@pytest.fixture(scope="session")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that answers, with the real llama.cpp."""
    directory = tmp_path_factory.mktemp("talk")
    init(directory)
    dflash("up", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()
