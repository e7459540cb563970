"""One deployment that answers, for all tests that only ask it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.llamacpp_native import started


@pytest.fixture(scope="session")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that answers, with the real llama.cpp."""
    with started(tmp_path_factory.mktemp("talk")) as directory:
        yield directory
