"""A real Prometheus reads the real vLLM as `monitor up` configures it: each metric and panel has a value."""

import json
import signal
from queue import Queue

from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.operations.keys import revoke_key
from dflash_deploy.serve.engines import ENGINES
from tests.support.commands import wait_until
from tests.support.monitored import HANGS, Received, fired, watched, webhook, webhook_config
from tests.support.procfs import Process, family_of
from tests.support.prometheus import Prometheus, load, panel_expressions, records
from tests.support.server import Server

# Recorded metrics of exporters: tests/parsers reads real ones.
NOT_READ = (
    *("dflash:gpu_", "dflash:fabric_", "dflash:memory_", "dflash:disk_", "dflash:cpu_"),
    "dflash:endpoint:",
)


def test_each_recorded_metric_and_each_panel_has_a_value_under_load(drafting: Server) -> None:
    names = ENGINES["vllm"].metrics
    recorded = records(f"dflash-{names.prefix}", "dflash-derived", "dflash-gateway")
    panels = [expr for expr in panel_expressions() if not any(name in expr for name in NOT_READ)]
    with watched(drafting.directory, interval=1) as project:
        watching = Prometheus(project.url())
        with drafting.connect() as endpoint, load(endpoint):
            assert not watching.missing([*recorded, *panels])
        (length,) = watching.samples("dflash:acceptance_length")
        (position, *_) = watching.samples('dflash:acceptance_rate_by_position{position="0"}')
        assert 1 < float(length["value"][1]) <= 16
        assert 0 < float(position["value"][1]) <= 1
        assert not watching.firing()
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
