"""Alerts of a real Alertmanager at a webhook, a topic of ntfy and a mail server, and alerts that are silenced."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from dflash_deploy.assets import asset_text
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady, RolledBack
from dflash_deploy.features.monitoring import monitoring_folder
from dflash_deploy.features.monitoring.operations import SETTLING
from dflash_deploy.features.monitoring.project import ALERTMANAGER_FILE, RESTART_WINDOW
from dflash_deploy.operations.reporter import SILENT
from dflash_deploy.operations.work import MEASURING, engine_work
from tests.support.cli import initialise
from tests.support.mail import MailServer, mail_server
from tests.support.monitored import monitor, watched
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening

HANGS = 300.0
"""Seconds after which something counts as hung."""

WEBHOOK, NTFY, PASSWORD = "webhook-token-0123456789", "tk_0123456789abcdef", "a password of mail"
"""The keys of the receivers."""

Posted = Queue[tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def posted() -> Posted:
    """The path, the key and the body of each request that a receiver got."""
    return Queue()


@pytest.fixture(scope="module")
def mails() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory, posted: Posted, mails: MailServer) -> Iterator[Path]:
    """A deployment whose engine does not run, with three receivers."""

    class Receiver(Quiet):
        def do_POST(self) -> None:  # noqa: N802 - the name of the base class
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.put((self.path, self.headers["Authorization"], body))
            self.send(200, "text/plain", b"")

    place = tmp_path_factory.mktemp("receivers") / "vision"
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    with listening(Receiver) as url:
        folder = monitoring_folder(Deployment(place)) / "alertmanager"
        folder.mkdir(parents=True)
        for name, key in {"webhook.token": WEBHOOK, "ntfy.token": NTFY, "smtp.password": PASSWORD}.items():
            (folder / name).write_text(key)
            (folder / name).chmod(0o600)
        with watched(place, every_receiver(url, mails.address)):
            yield place


def every_receiver(url: str, smtp: str) -> str:
    """The configuration that `monitor up` writes, with all receivers of its comments."""
    text = re.sub("(?m)^  # ", "  ", asset_text("monitoring", ALERTMANAGER_FILE))
    text = text.replace("https://example.com/alerts", f"{url}/alerts").replace("https://ntfy.sh/TOPIC", f"{url}/topic")
    return text.replace("smtp.example.com:587", smtp).replace("require_tls: true", "require_tls: false")


def test_a_test_alert_reaches_every_receiver_with_its_key(monitored: Path, posted: Posted, mails: MailServer) -> None:
    state = monitor("status", "--json", at=monitored).succeeded().document["data"]
    assert state["receivers"] == ["email", "webhook", "webhook"]
    monitor("test", at=monitored).succeeded()
    requests: dict[str, tuple[str, str, dict[str, Any]]] = {}
    while set(requests) < {"/alerts", "/topic"}:
        path, key, body = posted.get(timeout=HANGS)
        requests[urlsplit(path).path] = (path, key, body)
    assert {path: key for path, (_, key, _) in requests.items()} == {
        "/alerts": f"Bearer {WEBHOOK}",
        "/topic": f"Bearer {NTFY}",
    }
    templates = {name: values[0] for name, values in parse_qs(urlsplit(requests["/topic"][0]).query).items()}
    body = requests["/topic"][2]
    assert templates["template"] == "yes"
    # ntfy fills them from the body: each name is there
    assert {name for name in ("status", "commonLabels", "alerts") if f".{name}" in str(templates)} <= set(body)
    assert body["alerts"][0]["annotations"].keys() >= {"summary", "command"}
    assert body["commonLabels"]["alertname"] == "MonitorTest"
    mail = mails.mails.get(timeout=HANGS)
    assert mails.logins[-1] == ("box", PASSWORD)
    assert (mail["To"], mail["From"]) == ("you@example.com", "box@example.com")
    assert mail["Subject"] == f"[firing] MonitorTest {Deployment(monitored).project_name}"
    text = mail.get_body()
    assert text is not None
    assert "Command: dflash-deploy monitor status" in text.get_content()


def silences(directory: Path) -> list[tuple[str, timedelta]]:
    """The comment of each silence in force, and how long it lasts from now on."""
    address = monitor("status", "--json", at=directory).succeeded().document["data"]["alertmanager"]
    found = httpx.get(f"{address}/api/v2/silences", timeout=HANGS).json()
    return [
        (one["comment"], datetime.fromisoformat(one["endsAt"]) - datetime.now(UTC))
        for one in found
        if one["status"]["state"] == "active"
    ]


def suppressed(directory: Path, name: str, **further: str) -> bool:
    """Whether Alertmanager sends an alert with this name and further labels to nobody."""
    address = monitor("status", "--json", at=directory).succeeded().document["data"]["alertmanager"]
    labels = {"alertname": name, "deployment": Deployment(directory).project_name, **further}
    httpx.post(f"{address}/api/v2/alerts", json=[{"labels": labels}], timeout=HANGS).raise_for_status()
    found = httpx.get(f"{address}/api/v2/alerts", params={"filter": f'alertname="{name}"'}, timeout=HANGS).json()
    states = {one["status"]["state"] for one in found if one["labels"] == labels}
    assert len(states) == 1
    return states == {"suppressed"}


def test_a_command_that_restarts_the_engine_silences_what_that_causes(monitored: Path) -> None:
    for _ in range(2):
        # the second one ends what the first one left
        with engine_work(Deployment(monitored), "restart", SILENT):
            assert suppressed(monitored, "EngineDown")
            assert suppressed(monitored, "RestartLoop")
            # the machine is not what restarts
            assert not suppressed(monitored, "GPUHot")
    ((comment, lasts),) = silences(monitored)
    assert comment == "`restart` restarts the engine"
    assert timedelta() < lasts <= SETTLING


def test_a_failure_ends_the_silence_of_its_command(monitored: Path) -> None:
    with pytest.raises(EngineNotReady), engine_work(Deployment(monitored), "up", SILENT):
        raise EngineNotReady("no", hint="yes")
    assert not silences(monitored)
    # the last good settings run, and Prometheus has yet to see it
    with pytest.raises(RolledBack), engine_work(Deployment(monitored), "up", SILENT):
        raise RolledBack("no", hint="yes")
    assert silences(monitored)


def test_restarts_of_a_command_that_measures_are_no_loop_while_the_alert_counts_them(monitored: Path) -> None:
    with pytest.raises(EngineNotReady), engine_work(Deployment(monitored), "tune", SILENT, MEASURING):
        raise EngineNotReady("no", hint="yes")
    # the failure is an alert, the restarts before it are not
    assert not suppressed(monitored, "EngineDown")
    with engine_work(Deployment(monitored), "up", SILENT):
        pass
    assert suppressed(monitored, "RestartLoop")
    assert max(lasts for _, lasts in silences(monitored)) > RESTART_WINDOW
