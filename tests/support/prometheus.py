"""A real Prometheus with an exported configuration, private on 127.0.0.1, for as long as a block runs."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from dflash_deploy.assets import asset, asset_text
from dflash_deploy.client.endpoint import Endpoint
from tests.support.debian import program
from tests.support.ports import free_port

HANGS = 300.0  # seconds after which something counts as hung


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def samples(self, expr: str) -> list[dict[str, Any]]:
        """The samples that an expression has now."""
        return self._asked("query", query=expr)

    def curve(self, expr: str, start: float, step: int, points: int) -> list[dict[str, Any]]:
        """The series of an expression, each with at most that many `values`, a step of seconds apart."""
        return self._asked("query_range", query=expr, start=start, end=start + step * (points - 1), step=step)

    def _asked(self, path: str, **params: str | float) -> list[dict[str, Any]]:
        document = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=HANGS).json()
        assert document["status"] == "success", f"{params}: {document}"
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    def missing(self, expressions: list[str]) -> list[str]:
        """The expressions that have no sample within the limit; waits until all have one."""
        until = time.monotonic() + HANGS
        left = expressions
        while left and time.monotonic() < until:
            left = [expr for expr in left if not self.samples(expr)]
            time.sleep(1)
        return left

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {one["metric"]["alertname"] for one in self.samples('ALERTS{alertstate="firing"}')}


def groups() -> dict[str, list[dict[str, Any]]]:
    """The recording rules of each group."""
    return {one["name"]: one["rules"] for one in yaml.safe_load(asset_text("monitoring", "rules.yaml"))["groups"]}


def records(*names: str) -> list[str]:
    """The names of the series that groups record."""
    return [rule["record"] for name in names for rule in groups()[name]]


def conditions() -> dict[str, str]:
    """The condition of each alert by its name."""
    (group,) = yaml.safe_load(asset_text("monitoring", "alerts.yaml"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def read_from() -> dict[str, str]:
    """What must be read besides the engine for each alert; empty if the alert is about the engine."""
    (group,) = yaml.safe_load(asset_text("monitoring", "alerts.yaml"))["groups"]
    return {rule["alert"]: rule["annotations"].get("needs", "") for rule in group["rules"]}


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards by the name of their file, without its ending."""
    files = sorted(asset("monitoring", "dashboards").glob("*.json"))
    return {file.stem: json.loads(file.read_text("utf-8")) for file in files}


def panel_expressions() -> list[str]:
    """The expressions of all panels, for all deployments."""
    curves = (curve for one in dashboards().values() for panel in one["panels"] for curve in panel["targets"])
    return [curve["expr"].replace("$deployment", ".*") for curve in curves]


@contextmanager
def load(endpoint: Endpoint, tokens: int = 48) -> Iterator[None]:
    """Requests for that many tokens one after the other, as long as the block runs."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            endpoint.chat("Count from 1 to 20.", max_tokens=tokens)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join(HANGS)


@contextmanager
def node_exporter(place: Path) -> Iterator[str]:
    """Start node exporter on 127.0.0.1; yields its address."""
    with _exporter("prometheus-node-exporter", place) as address:
        yield address


@contextmanager
def blackbox_exporter(place: Path, root: Path | None = None) -> Iterator[str]:
    """Start blackbox exporter on 127.0.0.1, with the configuration that it comes with; yields its address.

    With the root certificate of a private authority, its module trusts that one, as docs/how-to/monitor.md says.
    """
    installed = program("prometheus-blackbox-exporter")
    # in the package it is beside the program, or in /etc
    config = installed.parents[2] / "etc" / "prometheus" / "blackbox.yml"
    file = config if config.is_file() else Path("/etc/prometheus/blackbox.yml")
    if root is not None:
        file = place / "blackbox.yml"
        file.write_text(f"modules: {{http_2xx: {{prober: http, http: {{tls_config: {{ca_file: {root}}}}}}}}}\n")
    with _exporter("prometheus-blackbox-exporter", place, f"--config.file={file}") as address:
        yield address


@contextmanager
def _exporter(name: str, place: Path, *options: str) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [str(program(name)), f"--web.listen-address={address}", *options]
    with (place / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(HANGS)


@contextmanager
def prometheus(config: Path, data: Path) -> Iterator[Prometheus]:
    """Start Prometheus and wait until it is ready; afterwards it has ended."""
    port = free_port()
    command = [
        str(program("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (data.parent / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_ready(f"http://127.0.0.1:{port}", process, Path(log.name))
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(HANGS)


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/-/ready", timeout=HANGS).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready: {log.read_text()[-3000:]}")
