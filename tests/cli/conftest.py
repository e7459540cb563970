"""vLLM counts as installed: the command line treats it as one, and no test of this tier starts it."""

import os
import sys

import pytest

from tests.support.scripted_vllm import installed_in


@pytest.fixture(scope="session", autouse=True)
def scripted_vllm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same engine for these tests on every machine: `vllm` on the path of Python, with the scripted server."""
    for place in reversed(installed_in(tmp_path_factory.mktemp("vllm"))["PYTHONPATH"].split(os.pathsep)):
        sys.path.insert(0, place)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH", "")]))
