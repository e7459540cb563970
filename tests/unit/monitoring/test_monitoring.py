"""The files of monitoring/ use recorded series only, and what is filled in for a deployment."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as sdk

from dflash_deploy.assets import asset_text
from dflash_deploy.features.monitoring.project import (
    BASELINE,
    CONCURRENCY,
    KEY_FILE,
    PORTS,
    RESTART_LOOP,
    RESTART_WINDOW,
    RESTARTS,
    RUNBOOK,
    ScrapeTargets,
    alerts,
    baseline_file,
    limits,
    limits_file,
    prometheus_file,
)
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.started import start_time, with_start_time
from tests.support.prometheus import conditions, dashboards, groups

UNIFIED = limits(sequences=8, speculating=True, unified=True)
LIMITS = {rule["record"] for rule in yaml.safe_load(limits_file("box", UNIFIED))["groups"][0]["rules"]}
RECORDED = {rule["record"] for rules in groups().values() for rule in rules} | LIMITS | {BASELINE}


def test_alerts_use_recorded_series_only() -> None:
    for name, condition in conditions().items():
        used = set(re.findall(r"\b\w+:[\w:]+", condition))
        assert used
        assert used <= RECORDED, name
        assert "{" not in condition


def test_each_alert_has_a_runbook_and_says_what_to_check() -> None:
    (group,) = yaml.safe_load(asset_text("monitoring", "alerts.yaml"))["groups"]
    for rule in group["rules"]:
        said = rule["annotations"]
        assert said.keys() >= {"summary", "description", "command"}
        assert said["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"
        assert " Check: " in said["description"]
        assert rule["labels"] in ({"severity": "page"}, {"severity": "warning"})
    assert conditions()[RESTART_LOOP].endswith(f"[{RESTART_WINDOW.seconds // 3600}h]) > {RESTARTS}")
    assert {alert.name for alert in alerts() if not alert.by_restart} > {"DiskFull", "GPUHot", "RequestsRefused"}


def unknown(written: Any, known: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The places in a document that differ in the one that was read with Grafana's types."""
    if isinstance(written, dict) and isinstance(known, dict):
        for name, value in written.items():
            yield from unknown(value, known.get(name), (*path, name))
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        for one, other in zip(written, known, strict=True):
            yield from unknown(one, other, path)
    elif written != known:
        yield " ".join(path)


@pytest.mark.parametrize("name", dashboards())
def test_each_panel_says_what_it_shows_and_what_to_do(name: str) -> None:
    document = dashboards()[name]
    # what Grafana's own types do not know, they leave out
    known = json.loads(json.dumps(sdk.Dashboard.from_json(document), cls=JSONEncoder))
    assert set(unknown(document, known)) == {"annotations list titleFormat", "annotations list textFormat"}
    assert document["uid"] == f"dflash-{name}"
    panels = document["panels"]
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert re.fullmatch(r".+\.\n\nIf it is red: .+\.", panel["description"])
        for curve in panel["targets"]:
            used = set(re.findall(r"\bdflash:[\w:]+", curve["expr"]))
            assert used <= RECORDED
            assert used or curve["expr"].startswith("count(ALERTS")


def test_dashboards_show_every_engine_metric() -> None:
    shown = " ".join(
        curve["expr"] for one in dashboards().values() for panel in one["panels"] for curve in panel["targets"]
    )
    missing = {record for record in RECORDED if not re.search(rf"{record}\b", shown)}
    # inputs of others, and quantiles beside those that are shown
    assert missing == {
        "dflash:steps_per_second",
        "dflash:draft_tokens_per_second",
        "dflash:gpu_errors",
        BASELINE,
        CONCURRENCY,
        *(f"dflash:limit:{name}" for name in ("acceptance_kept", "certificate_seconds", "drafts", "ttft_seconds")),
        *(f"dflash:{name}:{quantile}" for name in ("ttft_seconds", "queue_seconds") for quantile in ("p99",)),
        *(f"dflash:tpot_seconds:{quantile}" for quantile in ("p50", "p95", "p99")),
        "dflash:queue_seconds:p50",
    }


def test_every_limit_is_used() -> None:
    text = " ".join(conditions().values()) + " ".join(rule["expr"] for rule in groups()["dflash-derived"])
    assert not {name for name in LIMITS if not re.search(rf"{name}\b", text)}


def test_every_engine_has_the_figures_that_its_metrics_give() -> None:
    for names in {engine.metrics.prefix: engine.metrics for engine in ENGINES.values()}.values():
        rules = groups()[f"dflash-{names.prefix}"]
        written = " ".join(rule["expr"] for rule in rules)
        # each name of the engine is read, and no other
        known = {name for each in asdict(names).values() for name in (each if isinstance(each, tuple) else (each,))}
        used = {re.sub("_bucket$|_sum$|_count$", "", name) for name in re.findall(rf"\b{names.prefix}:(\w+)", written)}
        assert used <= {re.sub("_sum$|_count$", "", name) for name in known if isinstance(name, str)}
        records = {rule["record"].removeprefix("dflash:") for rule in rules}
        assert records >= {"tokens_per_second", "queue", "running", "drafts_per_second", "tpot_seconds:mean"}
        assert ("kv_usage" in records) == bool(names.kv_cache_usage)
        assert ("ttft_seconds:p95" in records) == bool(names.ttft)
        assert {rule["labels"]["engine"] for rule in rules} == {names.prefix}


def test_limits_follow_the_deployment() -> None:
    card = limits(sequences=8, speculating=True, unified=False)
    assert (card.queue, card.drafts, card.ttft_seconds, card.memory_available_bytes) == (8, 1, 2, 1 << 30)
    assert (UNIFIED.ttft_seconds, UNIFIED.memory_available_bytes) == (5, 4 << 30)
    rules = yaml.safe_load(limits_file("vision", UNIFIED))["groups"][0]["rules"]
    assert card.certificate_seconds == 7 * 86400
    private = limits(sequences=8, speculating=True, unified=True, private_authority=True)
    assert (private.certificate_seconds, private.ttft_seconds) == (7200, 5)
    written = {rule["record"]: rule["expr"] for rule in rules}
    assert written["dflash:limit:queue"] == "vector(8)"
    assert float(written["dflash:limit:memory_available_bytes"][7:-1]) == 4 << 30
    assert {rule["labels"]["deployment"] for rule in rules} == {"vision"}


def test_the_baseline_is_a_rule_for_this_deployment_only() -> None:
    (group,) = yaml.safe_load(baseline_file("vision", {4: 0.02, 1: 0.01}))["groups"]
    (rule,) = group["rules"]
    assert rule["record"] == BASELINE
    assert set(re.findall(r"dflash:[^ ]+", rule["expr"])) == {f'{CONCURRENCY}{{deployment="vision"}}'}
    assert rule["expr"].startswith("0.01 + ")
    assert yaml.safe_load(baseline_file("vision", {})) == {"groups": []}


def test_the_configuration_names_the_key_file_and_no_key() -> None:
    targets = ScrapeTargets("vision", "127.0.0.1:8000", gpus=True)
    document = yaml.safe_load(prometheus_file(targets, {**PORTS, "gpu": 9999}, interval=5))
    assert document["global"]["scrape_interval"] == "5s"
    engine, node, gpu = document["scrape_configs"]
    assert engine["authorization"] == {"type": "Bearer", "credentials_file": KEY_FILE}
    assert engine["static_configs"] == [{"targets": ["127.0.0.1:8000"], "labels": {"deployment": "vision"}}]
    assert node["static_configs"] == [{"targets": ["127.0.0.1:9100"], "labels": {"deployment": "vision"}}]
    assert gpu["static_configs"][0]["targets"] == ["127.0.0.1:9999"]
    assert document["alerting"]["alertmanagers"]
    assert targets.profiles == ("gpu",)


def test_the_endpoint_is_read_without_a_key() -> None:
    targets = ScrapeTargets("vision", "127.0.0.1:8003", "https://box/health")
    document = yaml.safe_load(prometheus_file(targets))
    _, _, endpoint = document["scrape_configs"]
    assert endpoint["job_name"] == "dflash-endpoint"
    assert "authorization" not in endpoint
    assert endpoint["static_configs"][0]["targets"] == ["127.0.0.1:9115"]
    assert endpoint["params"]["target"] == ["https://box/health"]
    assert targets.profiles == ("front",)


@pytest.mark.parametrize("written", ["", "-1", "soon", "9" * 13, "1.5"])
def test_a_start_time_that_is_none_is_left_out(written: str) -> None:
    assert start_time({"DFLASH_STARTED": written}) is None


def test_the_start_time_is_that_of_the_launch() -> None:
    environment = with_start_time({"A": "1"})
    assert environment["A"] == "1"
    assert (start_time(environment) or 0) > 1.7e9
