"""A real container engine and Compose: the machine's own where one answers, else one that these tests start."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import standin_base
from tests.support.container_engine import Engine, ensure_engine

# The data of an engine of our own, kept between runs: the stand-in base image takes minutes to make.
STATE = Path(__file__).parents[2] / ".cache" / "docker"

BASE_IMAGE = "dflash-standin/vllm-openai-cpu:0.32.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the container engine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine. Where none can be had this tier does not run, which is a failure in CI and a loud line elsewhere."""
    try:
        found = ensure_engine(STATE)
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE DOCKER TIER DID NOT RUN: {problem}")
    os.environ.update(found.environment())
    yield found
    found.stop()


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """The stand-in for the vLLM image that the project's own image is built on."""
    standin_base.ensure_image(BASE_IMAGE)
    return BASE_IMAGE
