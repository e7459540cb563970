"""The local hub with one repository, the real client and a plain one."""

import logging
from collections.abc import Iterator

import httpx
import pytest
from huggingface_hub import HfApi, close_session, constants
from huggingface_hub.utils.tqdm import disable_progress_bars

from tests.hub.weights.published import FILES, NAME
from tests.support.hub import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(accounts={"hf_reader": "reader", "hf_stranger": "stranger"}) as hub:
        hub.add(NAME, FILES)
        yield hub


@pytest.fixture
def api(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[HfApi]:
    """The real client, which otherwise asks the real hub for its list of agents, and this machine for a token."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    yield HfApi(endpoint=hub.endpoint)
    close_session()


@pytest.fixture
def http(hub: Hub) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hub.endpoint, follow_redirects=True, trust_env=False, timeout=60) as client:
        yield client
