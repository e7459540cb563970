"""A real Prometheus reads the real vLLM as `monitor export` configures it: each metric and panel has a value."""

import json
import signal
from pathlib import Path
from queue import Queue

import pytest

from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.features.monitoring.operations import export_monitoring
from dflash_deploy.operations.keys import revoke_key
from dflash_deploy.serve.engines import ENGINES
from tests.support.bench_figures import keep_baseline
from tests.support.browser import browser_or_skip
from tests.support.commands import wait_until
from tests.support.monitored import HANGS, Received, fired, watched, webhook, webhook_config
from tests.support.procfs import Process, family_of
from tests.support.prometheus import dashboards, load, panel_expressions, prometheus, records
from tests.support.server import Server
from tools.panels import DRAWN, panels_page, without_data

NOT_READ = (
    *("dflash:gpu_", "dflash:fabric_", "dflash:memory_", "dflash:disk_", "dflash:cpu_"),
    "dflash:endpoint:",
)
"""Recorded metrics of exporters: tests/parsers reads real ones."""


SHOWN = """
return [...document.querySelectorAll('figure')].map(figure => [
  figure.querySelector('b').textContent,
  [...figure.querySelectorAll('circle')].filter(dot => dot.getBoundingClientRect().width > 0).length,
]);
"""
"""The title of each panel and how many dots of it are seen."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the panels, which the first test draws."""
    return tmp_path_factory.mktemp("panels") / "panels.html"


def test_each_recorded_metric_and_each_panel_has_a_value_under_load(
    drafting: Server, tmp_path: Path, page: Path
) -> None:
    names = ENGINES["vllm"].metrics
    recorded = records(f"dflash-{names.prefix}", "dflash-derived", "dflash-gateway")
    panels = [expr for expr in panel_expressions() if not any(name in expr for name in NOT_READ)]
    keep_baseline(drafting.directory)
    export_monitoring(drafting.directory, tmp_path / "config", interval=1)
    with prometheus(tmp_path / "config" / "prometheus.yml", tmp_path / "data") as watching:
        with drafting.connect() as endpoint, load(endpoint):
            assert not watching.missing([*recorded, *panels])
        (length,) = watching.samples("dflash:acceptance_length")
        (position, *_) = watching.samples('dflash:acceptance_rate_by_position{position="0"}')
        assert 1 < float(length["value"][1]) <= 16
        assert 0 < float(position["value"][1]) <= 1
        assert not watching.firing()
        page.write_text(panels_page(watching, 24))
    (drafting.directory / ".dflash" / "bench.json").unlink()
    revoke_key(drafting.directory, "prometheus")


def stopped_in_a_request(core: Process, endpoint: Endpoint) -> bool:
    """Stop the core. If a request ended before the signal arrived, the server reports none: the core goes on then."""
    if endpoint.metrics().running:
        core.signal(signal.SIGSTOP)
        # what the core sent before it stopped is read with the first question
        if all(endpoint.metrics().running for _ in range(3)):
            return True
        core.signal(signal.SIGCONT)
    return False


def test_a_core_that_computes_nothing_is_an_alert_at_the_receiver(drafting: Server) -> None:
    """With rates of ten seconds and a condition that holds for three. Its /metrics answers all the while."""
    supervisor = json.loads((drafting.directory / ".dflash" / "run.json").read_text())["pid"]
    (core,) = [one for one in family_of(lambda one: one.pid == supervisor) if one.name.startswith("VLLM::EngineCore")]
    received: Received = Queue()
    with webhook(received) as url, watched(drafting.directory, webhook_config(url), interval=1) as project:
        project.shorten(window="10s", lasts="3s")
        with drafting.connect() as endpoint, load(endpoint, tokens=400):
            assert wait_until(lambda: stopped_in_a_request(core, endpoint), HANGS)
            try:
                found = fired(received, {"EngineHangs"})
            finally:
                core.signal(signal.SIGCONT)
    revoke_key(drafting.directory, "prometheus")
    assert found == {"EngineHangs": {endpoint.url.removeprefix("http://")}}


# tests without the server run before all others
@pytest.mark.usefixtures("server")
def test_the_panels_are_seen_in_a_browser(page: Path) -> None:
    """The test before has drawn them, from what the real engine and the real Prometheus measured."""
    drawn = [panel for name in DRAWN for panel in dashboards()[name]["panels"]]
    assert not list(without_data(page.read_text()))
    with browser_or_skip("the page of the panels") as tab:
        tab.open(page)
        assert tab.console() == []
        shown = tab.evaluate(SHOWN)
    assert [title for title, _ in shown] == [panel["title"] for panel in drawn]
    assert all(dots > 0 for (_, dots), panel in zip(shown, drawn, strict=True) if panel["type"] == "timeseries")
