"""The files of `monitor up` beside the real llama.cpp: the real Prometheus and Alertmanager, and a webhook."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.key_file import key
from tests.support.cli import dflash
from tests.support.llamacpp_native import init, processes, server_of
from tests.support.monitored import HANGS, Project, Received, fired, monitor, watched, webhook, webhook_config


@pytest.fixture(scope="module")
def received() -> Received:
    """The notifications that the webhook got."""
    return Queue()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, received: Received) -> Iterator[Project]:
    """The project of a deployment that runs, and is monitored."""
    directory = tmp_path_factory.mktemp("monitored")
    init(directory)
    dflash("up", at=directory).succeeded()
    with webhook(received) as url, watched(directory, webhook_config(url), interval=1) as running:
        yield running
    dflash("down", at=directory).succeeded()
    assert not processes(directory)


@pytest.fixture
def monitored(project: Project) -> Path:
    """The directory of that deployment."""
    return project.directory


def seen(directory: Path) -> dict[str, Any]:
    data: dict[str, Any] = monitor("status", "--json", at=directory).succeeded().document["data"]
    return data


def until(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + HANGS
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(1)
    return True


def test_the_engine_is_read_and_nothing_fires(monitored: Path) -> None:
    # node exporter does not run
    assert until(lambda: ("engine", "up") in [(one["kind"], one["health"]) for one in seen(monitored)["targets"]])
    assert seen(monitored)["firing"] == []
    shown = monitor("status", at=monitored).succeeded().out
    assert "prometheus   http://127.0.0.1:" in shown


def test_the_key_is_in_its_file_only(monitored: Path) -> None:
    value = key(monitored, "prometheus").key.reveal()
    folder = monitored / ".dflash" / "monitor"
    holders = [path for path in folder.glob("*") if path.is_file() and value in path.read_text()]
    assert [path.name for path in holders] == ["metrics.key"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    logs = [path.read_text() for path in folder.glob("*.log")]
    assert len(logs) == 2
    assert not [text for text in logs if value in text]


def test_a_test_alert_reaches_the_receiver(monitored: Path, received: Received) -> None:
    assert monitor("test", "--json", at=monitored).succeeded().document["data"] == {"receivers": ["webhook"]}
    (alert,) = received.get(timeout=HANGS)["alerts"]
    assert alert["labels"]["alertname"] == "MonitorTest"
    assert alert["labels"]["deployment"] == Deployment(monitored).project_name


def test_a_killed_engine_is_an_alert_at_the_receiver(project: Project, monitored: Path, received: Received) -> None:
    """With two minutes shortened to five seconds."""
    alerts = project.folder / "alerts.yaml"
    alerts.write_text(alerts.read_text().replace("for: 2m", "for: 5s"))
    project.reload()
    os.kill(server_of(monitored), signal.SIGKILL)
    fired(received, {"EngineDown"})
    assert "EngineDown" in seen(monitored)["firing"]


def test_what_happened_is_told_in_order(monitored: Path) -> None:
    data = dflash("status", "--since", "1h", "--json", at=monitored).succeeded().document["data"]
    told = [(one["event"], one["command"]) for one in data["events"]]
    assert [one for one in told if one[0] == "ready"] == [("ready", "up")]
    assert told.index(("key", "keys add")) < told.index(("ended", ""))
    assert told[-1] == ("alert", "")
    texts = [one["text"] for one in data["events"]]
    assert "the engine ended with exit code 137" in texts
    assert texts[-1].startswith("EngineDown fires at 127.0.0.1:")
    assert data["alerts"]
    assert (monitored / ".dflash" / "journal.jsonl").stat().st_mode & 0o777 == 0o600
    value = key(monitored).key.reveal()
    assert value not in (monitored / ".dflash" / "journal.jsonl").read_text()
