"""Each alert fires on series with its fault, and none fires on those of a healthy deployment: the real promtool."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.features.monitoring.project import BASELINE, alerts
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.promtool import (
    ACCEPTANCE_LENGTH,
    EDGE,
    LENGTH,
    NODE,
    TARGET,
    counter,
    engines,
    front,
    gauge,
    healthy,
    machine,
    said_of,
)

SPEEDUP = "dflash:speedup_over_plain"
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
VLLM = engines()["vllm"]

FAULTS: Mapping[str, Mapping[str, str]] = {
    "EngineDown": {f'up{{{TARGET},job="dflash"}}': gauge(0)},
    "EngineHangs": {
        f"vllm:iteration_tokens_total_count{{{TARGET}}}": counter(0),
    },
    "QueueGrows": {f"vllm:num_requests_waiting{{{TARGET}}}": gauge(5)},
    "QueueSlow": {
        f'vllm:request_queue_time_seconds_bucket{{{TARGET},le="{le}"}}': counter(0)
        for le in ("0.1", "0.5", "2.5", "10")
    },
    "KVCacheFull": {f"vllm:kv_cache_usage_perc{{{TARGET}}}": gauge(0.97)},
    "Preemptions": {f"vllm:num_preemptions_total{{{TARGET}}}": counter(1)},
    "TTFTSlow": {
        f'vllm:time_to_first_token_seconds_bucket{{{TARGET},le="{le}"}}': counter(0) for le in ("0.1", "0.5", "2.5")
    },
    # 1.4 tokens per step from the beginning
    "AcceptanceFell": {f"vllm:spec_decode_num_accepted_tokens_total{{{TARGET}}}": counter(80)},
    "DraftsStopped": {f"vllm:spec_decode_num_drafts_total{{{TARGET}}}": counter(0)},
    "RestartLoop": {f"dflash_start_time_seconds{{{TARGET}}}": f"1795000000+60x{LENGTH}"},
    "MemoryLow": {f"node_memory_MemAvailable_bytes{{{NODE}}}": gauge(3e9)},
    "DiskFull": {f'node_filesystem_avail_bytes{{{NODE},fstype="ext4",mountpoint="/"}}': gauge(4e10)},
    "RequestsRefused": {f"dflash_refused_requests_total{{{TARGET}}}": counter(60)},
    "EndpointDown": {f'probe_success{{{EDGE},job="dflash-endpoint"}}': gauge(0)},
    "CertificateExpires": {f'probe_ssl_earliest_cert_expiry{{{EDGE},job="dflash-endpoint"}}': gauge(6 * 86400)},
    # the port is up for 25 minutes
    "FabricDown": {f'node_infiniband_state_id{{{NODE},device="mlx5_0",port="1"}}': "4+0x50 1+0x150"},
    "GPUHot": {f'DCGM_FI_DEV_GPU_TEMP{{{NODE},gpu="0"}}': gauge(90)},
    "GPUError": {f'DCGM_FI_DEV_XID_ERRORS{{{NODE},gpu="0"}}': gauge(31)},
}
"""The series that differ from those of a healthy deployment, by the alert that they cause."""

USUAL, LATE = "35m", {"CertificateExpires": "65m"}
"""When an alert must fire: the one of a certificate waits an hour."""


def whole() -> dict[str, str]:
    return {**healthy(VLLM), **machine(), **front()}


def test_the_rules_are_valid() -> None:
    files = [str(asset("monitoring", name)) for name in ("rules.yaml", "alerts.yaml")]
    done = run_command(str(program("promtool")), "check", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_fault() -> None:
    assert set(FAULTS) == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_on_its_fault_and_no_other_does(alert: str, tmp_path: Path) -> None:
    series = whole()
    assert set(FAULTS[alert]) <= set(series), "the fault is in a series that a healthy deployment does not have"
    firing = {f'{{alertname="{alert}"}}': 1.0}
    assert not said_of(tmp_path, {**series, **FAULTS[alert]}, {FIRING: firing}, at=LATE.get(alert, USUAL))


def test_a_length_that_falls_below_its_median_is_an_alert_too(tmp_path: Path) -> None:
    name = f"vllm:spec_decode_num_accepted_tokens_total{{{TARGET}}}"
    # from 3 to 1.7 tokens per step, after an hour
    series = {**whole(), name: "1000+400x120 49140+140x80"}
    assert not said_of(tmp_path, series, {FIRING: {'{alertname="AcceptanceFell"}': 1.0}}, at="90m")


def test_an_engine_without_counters_of_drafts_makes_none(tmp_path: Path) -> None:
    series = {name: values for name, values in whole().items() if "spec_decode" not in name}
    assert not said_of(tmp_path, series, {FIRING: {'{alertname="DraftsStopped"}': 1.0}})


@pytest.mark.parametrize("engine", engines())
def test_a_healthy_engine_has_no_alert_and_its_figures(engine: str, tmp_path: Path) -> None:
    names = engines()[engine]
    figures = {
        "dflash:tokens_per_second": 20.0,
        "dflash:acceptance_length": ACCEPTANCE_LENGTH,
        "dflash:tpot_seconds:mean": 0.02,
        "dflash:load": 0.75,
    }
    if names.ttft:
        figures["dflash:ttft_seconds:p50"] = 0.1
    labels = f'{TARGET},engine="{engine}"'
    expected = {record: {f"{record}{{{labels}}}": value} for record, value in figures.items()} | {FIRING: {}}
    if names.accepted_by_position:
        record = "dflash:acceptance_rate_by_position"
        expected[f'{record}{{position="0"}}'] = {f'{record}{{{labels},position="0"}}': 0.75}
    assert not said_of(tmp_path, {**healthy(names), **machine()}, expected)


PLAIN = {2: 2**-5, 4: 2**-4, 6: 3 * 2**-6}
"""Seconds per output token without drafts, by concurrency: promtool compares without tolerance."""


@pytest.mark.parametrize(
    ("engine", "running", "plain"),
    [
        *((engine, 3, 3 * 2**-6) for engine in engines()),
        *(("vllm", at, plain) for at, plain in {1: 2**-5, **PLAIN, 9: 3 * 2**-6}.items()),
    ],
)
def test_the_speed_up_is_that_over_the_baseline_at_the_same_concurrency(
    engine: str, running: int, plain: float, tmp_path: Path
) -> None:
    names = engines()[engine]
    series = {**healthy(names), f"{names.prefix}:{names.running}{{{TARGET}}}": gauge(running)}
    labels = f'{{{TARGET},engine="{engine}"}}'
    expected = {
        BASELINE: {f"{BASELINE}{labels}": plain},
        # the engine needs 20 ms per token
        SPEEDUP: {f"{SPEEDUP}{labels}": plain / 0.02},
    }
    assert not said_of(tmp_path, series, expected, baseline=PLAIN)


def test_without_a_baseline_or_requests_there_is_no_speed_up(tmp_path: Path) -> None:
    nothing: dict[str, dict[str, float]] = {BASELINE: {}, SPEEDUP: {}}
    assert not said_of(tmp_path, healthy(VLLM), nothing)
    idle = {**healthy(VLLM), f"vllm:num_requests_running{{{TARGET}}}": gauge(0)}
    assert not said_of(tmp_path, idle, nothing, baseline={1: 0.03})


def test_an_idle_engine_has_no_alert(tmp_path: Path) -> None:
    still = {name: gauge(0) if " " not in name else values for name, values in healthy(VLLM).items()}
    still |= {name: values for name, values in healthy(VLLM).items() if name.startswith(("up", "dflash_start"))}
    assert not said_of(tmp_path, {**still, **machine()}, {FIRING: {}})
