"""Alerts of a real Alertmanager at a webhook, a topic of ntfy and a mail server."""

import json
import re
from collections.abc import Iterator
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from dflash_deploy.assets import asset_text
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.operations import monitoring_folder
from tests.support.cli import initialise
from tests.support.mail import MailServer, mail_server
from tests.support.monitored import ALERTMANAGER, ALERTMANAGER_FILE, Project, watched
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening

HANGS = 300.0  # seconds after which something counts as hung

# The keys of the receivers.
WEBHOOK, NTFY, PASSWORD = "webhook-token-0123456789", "tk_0123456789abcdef", "a password of mail"

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
def monitored(tmp_path_factory: pytest.TempPathFactory, posted: Posted, mails: MailServer) -> Iterator[Project]:
    """The project of a deployment whose engine does not run, with three receivers."""

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
        with watched(place, every_receiver(url, mails.address)) as project:
            yield project


def every_receiver(url: str, smtp: str) -> str:
    """The configuration that `monitor up` writes, with all receivers of its comments."""
    text = re.sub("(?m)^  # ", "  ", asset_text("monitoring", ALERTMANAGER_FILE))
    text = text.replace("https://example.com/alerts", f"{url}/alerts").replace("https://ntfy.sh/TOPIC", f"{url}/topic")
    return text.replace("smtp.example.com:587", smtp).replace("require_tls: true", "require_tls: false")


def test_an_alert_reaches_every_receiver_with_its_key(monitored: Project, posted: Posted, mails: MailServer) -> None:
    name = Deployment(monitored.directory).project_name
    alert = {
        "labels": {"alertname": "Trial", "deployment": name},
        "annotations": {"summary": "a trial", "command": "dflash-deploy status"},
    }
    httpx.post(f"{monitored.url(ALERTMANAGER)}/api/v2/alerts", json=[alert], timeout=HANGS).raise_for_status()
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
    assert body["commonLabels"]["alertname"] == "Trial"
    mail = mails.mails.get(timeout=HANGS)
    assert mails.logins[-1] == ("box", PASSWORD)
    assert (mail["To"], mail["From"]) == ("you@example.com", "box@example.com")
    assert mail["Subject"] == f"[firing] Trial {name}"
    text = mail.get_body()
    assert text is not None
    assert "Command: dflash-deploy status" in text.get_content()
