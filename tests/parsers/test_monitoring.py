"""A real Prometheus reads the real llama.cpp as `monitor up` configures it: each recorded metric has a value."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.operations import monitoring_folder
from dflash_deploy.serve.engines import ENGINES
from tests.support.llamacpp_native import connect, started
from tests.support.monitored import monitor_without_docker
from tests.support.prometheus import (
    Prometheus,
    conditions,
    load,
    node_exporter,
    panel_expressions,
    prometheus,
    read_from,
    records,
)

ENGINE = ENGINES["llamacpp"].metrics.prefix


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started."""
    with started(tmp_path_factory.mktemp("monitored")) as directory:
        yield directory


@pytest.fixture(scope="module")
def watching(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with the files of `monitor up`, one reading a second."""
    place = tmp_path_factory.mktemp("prometheus")
    with node_exporter(place) as node:
        monitor_without_docker("up", "--every", "1", at=served)
        config = monitoring_folder(Deployment(served)) / "prometheus.yml"
        config.write_text(config.read_text().replace("127.0.0.1:9100", node))
        with prometheus(config, place / "data") as started:
            yield started


# Recorded metrics without data on this machine, and why.
NOT_HERE = {
    "dflash:kv_usage": "llama.cpp does not report it",
    "dflash:preemptions_per_second": "llama.cpp does not preempt",
    "dflash:ttft_seconds:": "llama.cpp has no histograms",
    "dflash:queue_seconds:": "llama.cpp has no histograms",
    "dflash:gpu_": "needs a GPU",
    "dflash:fabric_ports_active": "needs InfiniBand or RoCE",
    "dflash:endpoint:": "needs blackbox exporter",
}


def without_data(expr: str) -> bool:
    return any(name in expr for name in NOT_HERE)


def test_each_recorded_metric_and_each_panel_has_a_value_under_load(served: Path, watching: Prometheus) -> None:
    of_engine = records(f"dflash-{ENGINE}")
    names = [*of_engine, *records("dflash-derived", "dflash-gateway", "dflash-machine")]
    recorded = [name for name in names if not without_data(name)]
    assert set(of_engine) <= set(recorded)
    panels = [expr for expr in panel_expressions() if not without_data(expr)]
    with connect(served) as endpoint, load(endpoint):
        assert not watching.missing([*recorded, *panels])
    (length,) = watching.samples("dflash:acceptance_length")
    with connect(served) as endpoint:
        counted = endpoint.counters().acceptance_length
    assert counted is not None
    # that of two minutes beside that since the start, which has the requests of `up` too
    assert float(length["value"][1]) == pytest.approx(counted, rel=0.3)
    assert length["metric"]["engine"] == ENGINE


# Alerts that depend on the memory and disks of the machine that runs the tests.
OF_THE_MACHINE = {name for name, needs in read_from().items() if "exporter" in needs}


def test_no_alert_of_a_healthy_engine_fires(watching: Prometheus) -> None:
    assert not watching.firing() - OF_THE_MACHINE


def test_each_condition_and_each_panel_is_evaluated(watching: Prometheus) -> None:
    # a condition that does not hold yields no sample; an error of types or labels raises
    found = {name for name, condition in conditions().items() if watching.samples(condition)}
    assert not found - OF_THE_MACHINE
    for expr in panel_expressions():
        watching.samples(expr)


def test_prometheus_is_a_key_among_the_keys(served: Path, watching: Prometheus) -> None:
    used = {one["metric"]["name"] for one in watching.samples("dflash:key:requests_per_second")}
    assert used >= {"owner", "prometheus"}
