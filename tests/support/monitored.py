"""Prometheus and Alertmanager beside a deployment, with faster clocks, and a webhook that gets the alerts."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.support.cli import Ran, dflash
from tests.support.debian import monitoring_path
from tests.support.llamacpp_native import processes
from tests.support.serving import Quiet, listening

HANGS = 300.0
"""Seconds after which something counts as hung."""

Received = Queue[dict[str, Any]]
"""The notifications that a webhook got."""


def monitor(*words: str, at: Path) -> Ran:
    """`dflash-deploy monitor` with the programs of Debian."""
    return dflash("monitor", *words, at=at, environment={"PATH": monitoring_path()})


@contextmanager
def webhook(received: Received) -> Iterator[str]:
    """A receiver of alerts, as long as the block runs; yields its address."""

    class Webhook(Quiet):
        def do_POST(self) -> None:  # noqa: N802 - the name of the base class
            received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send(200, "text/plain", b"")

    with listening(Webhook) as url:
        yield f"{url}/alerts"


def reload_programs(directory: Path) -> None:
    """Let the Prometheus and the Alertmanager of a deployment read their files again."""
    for pid, line in processes(directory / ".dflash" / "monitor").items():
        if "--config.file" in line and "supervisor" not in line:
            os.kill(pid, signal.SIGHUP)


def shorten(directory: Path, *, window: str, lasts: str) -> None:
    """Shorten the windows of all rates, how long the condition of every alert must hold, and the waits of Alertmanager.

    Alertmanager then waits one second for further alerts of a group.
    """
    folder = directory / ".dflash" / "monitor"
    rules, alerts, sender = (folder / name for name in ("rules.yaml", "alerts.yaml", "alertmanager.yml"))
    rules.write_text(re.sub(r"\[[25]m\]", f"[{window}]", rules.read_text()))
    alerts.write_text(re.sub(r"for: [1-9]\d*[smh]", f"for: {lasts}", alerts.read_text()))
    sender.write_text(re.sub(r"(group_wait|group_interval): \S+", r"\1: 1s", sender.read_text()))
    reload_programs(directory)


def fired(received: Received, wanted: set[str], seconds: float = HANGS) -> dict[str, set[str]]:
    """The instances of each alert that a webhook got; waits until all of `wanted` have come."""
    found: dict[str, set[str]] = {}
    ends = time.monotonic() + seconds
    while not wanted <= found.keys() and time.monotonic() < ends:
        try:
            notified = received.get(timeout=1)
        except Empty:
            continue
        for alert in notified["alerts"]:
            if alert["status"] == "firing":
                found.setdefault(alert["labels"]["alertname"], set()).add(alert["labels"].get("instance", ""))
    assert wanted <= found.keys(), f"{wanted - found.keys()} did not come, but {found}"
    return found
