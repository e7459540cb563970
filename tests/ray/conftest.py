"""A Ray cluster of two nodes with two replicas and the gateway, started once. The tests install what is missing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster.lab import Cluster, cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, for all tests of this folder. Without it this tier is reported as skipped."""
    try:
        with cluster(tmp_path_factory.mktemp("ray")) as found:
            yield found
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE RAY TIER DID NOT RUN: {problem}")
