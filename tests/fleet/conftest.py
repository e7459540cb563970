"""Two hosts in network namespaces, with real SSH servers. The tests install what is missing (root on Debian)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet_lab import Lab, lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the hosts."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session")
def whole_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts and a terminal for all tests of this folder. Without them this tier is reported as skipped."""
    try:
        with lab(tmp_path_factory.mktemp("lab") / "lab") as found:
            yield found
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE FLEET TIER DID NOT RUN: {problem}")


@pytest.fixture
def hosts(whole_lab: Lab) -> Lab:
    """The same in its first state: hosts on which nothing runs."""
    whole_lab.clear()
    whole_lab.write_fleet()
    return whole_lab
