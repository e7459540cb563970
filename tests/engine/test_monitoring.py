"""A real Prometheus reads the real vLLM as `monitor export` configures it: each metric and panel has a value."""

from pathlib import Path

from dflash_deploy.monitoring.recording import DERIVED, GATEWAY, groups
from dflash_deploy.operations import export_monitoring, revoke_key
from dflash_deploy.serve.engines import ENGINES
from tests.support.prometheus import load, panel_expressions, prometheus
from tests.support.server import Server

NOT_READ = (
    *("dflash:gpu_", "dflash:fabric_", "dflash:memory_", "dflash:disk_", "dflash:cpu_"),
    *("dflash:router:", "dflash:endpoint:"),
)
"""Recorded metrics of exporters and of a router: tests/parsers reads real ones."""


def test_each_recorded_metric_and_each_panel_has_a_value_under_load(drafting: Server, tmp_path: Path) -> None:
    names = ENGINES["vllm"].metrics
    (group,) = (group for group in groups() if group.name == f"dflash-{names.prefix}")
    records = [rule.record for rule in (*group.rules, *DERIVED, *GATEWAY)]
    panels = [expr for expr in panel_expressions() if not any(name in expr for name in NOT_READ)]
    export_monitoring(drafting.directory, tmp_path / "config", interval=1)
    with prometheus(tmp_path / "config" / "prometheus.yml", tmp_path / "data") as watching:
        with drafting.connect() as endpoint, load(endpoint):
            assert not watching.missing([*records, *panels])
        (length,) = watching.samples("dflash:acceptance_length")
        (position, *_) = watching.samples('dflash:acceptance_rate_by_position{position="0"}')
        assert 1 < float(length["value"][1]) <= 16
        assert 0 < float(position["value"][1]) <= 1
        assert not watching.firing()
    revoke_key(drafting.directory, "prometheus")
