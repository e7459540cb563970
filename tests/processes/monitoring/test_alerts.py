"""Each alert fires on series with its fault, and none fires on those of a healthy deployment: the real promtool."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.prometheus import conditions
from tests.support.promtool import (
    ACCEPTANCE_LENGTH,
    EDGE,
    HERE,
    LENGTH,
    NODE,
    counter,
    engines,
    front,
    gauge,
    healthy,
    machine,
    said_of,
)

FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
VLLM = engines()["vllm"]

# The series that differ from those of a healthy deployment, by the alert that they cause.
FAULTS: Mapping[str, Mapping[str, str]] = {
    "EngineDown": {f'up{{{HERE},job="dflash"}}': gauge(0)},
    "EngineHangs": {
        f"vllm:iteration_tokens_total_count{{{HERE}}}": counter(0),
    },
    "QueueGrows": {f"vllm:num_requests_waiting{{{HERE}}}": gauge(5)},
    "QueueSlow": {
        f'vllm:request_queue_time_seconds_bucket{{{HERE},le="{le}"}}': counter(0) for le in ("0.1", "0.5", "2.5", "10")
    },
    "KVCacheFull": {f"vllm:kv_cache_usage_perc{{{HERE}}}": gauge(0.97)},
    "Preemptions": {f"vllm:num_preemptions_total{{{HERE}}}": counter(1)},
    "TTFTSlow": {
        f'vllm:time_to_first_token_seconds_bucket{{{HERE},le="{le}"}}': counter(0) for le in ("0.1", "0.5", "2.5")
    },
    # 1.4 tokens per step from the beginning
    "AcceptanceFell": {f"vllm:spec_decode_num_accepted_tokens_total{{{HERE}}}": counter(80)},
    "DraftsStopped": {f"vllm:spec_decode_num_drafts_total{{{HERE}}}": counter(0)},
    "RestartLoop": {f"dflash_start_time_seconds{{{HERE}}}": f"1795000000+60x{LENGTH}"},
    "MemoryLow": {f"node_memory_MemAvailable_bytes{{{NODE}}}": gauge(3e9)},
    "DiskFull": {f'node_filesystem_avail_bytes{{{NODE},fstype="ext4",mountpoint="/"}}': gauge(4e10)},
    "RequestsRefused": {f"dflash_refused_requests_total{{{HERE}}}": counter(60)},
    "EndpointDown": {f'probe_success{{{EDGE},job="dflash-endpoint"}}': gauge(0)},
    "CertificateExpires": {f'probe_ssl_earliest_cert_expiry{{{EDGE},job="dflash-endpoint"}}': gauge(6 * 86400)},
    # the port is up for 25 minutes
    "FabricDown": {f'node_infiniband_state_id{{{NODE},device="mlx5_0",port="1"}}': "4+0x50 1+0x150"},
    "GPUHot": {f'DCGM_FI_DEV_GPU_TEMP{{{NODE},gpu="0"}}': gauge(90)},
    "GPUError": {f'DCGM_FI_DEV_XID_ERRORS{{{NODE},gpu="0"}}': gauge(31)},
}

USUAL, LATE = "35m", {"CertificateExpires": "65m"}  # when an alert must fire: the one of a certificate waits an hour


def deployed() -> dict[str, str]:
    return {**healthy(VLLM), **machine(), **front()}


def test_the_rules_are_valid() -> None:
    files = [str(asset("monitoring", name)) for name in ("rules.yaml", "alerts.yaml")]
    done = run_command(str(program("promtool")), "check", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_fault() -> None:
    assert set(FAULTS) == conditions().keys()


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_on_its_fault_and_no_other_does(alert: str, tmp_path: Path) -> None:
    series = deployed()
    assert set(FAULTS[alert]) <= set(series), "the fault is in a series that a healthy deployment does not have"
    firing = {f'{{alertname="{alert}"}}': 1.0}
    assert not said_of(tmp_path, {**series, **FAULTS[alert]}, {FIRING: firing}, at=LATE.get(alert, USUAL))


def test_a_length_that_falls_below_its_median_is_an_alert_too(tmp_path: Path) -> None:
    name = f"vllm:spec_decode_num_accepted_tokens_total{{{HERE}}}"
    # from 3 to 1.7 tokens per step, after an hour
    series = {**deployed(), name: "1000+400x120 49140+140x80"}
    assert not said_of(tmp_path, series, {FIRING: {'{alertname="AcceptanceFell"}': 1.0}}, at="90m")


def test_an_engine_without_counters_of_drafts_makes_none(tmp_path: Path) -> None:
    series = {name: values for name, values in deployed().items() if "spec_decode" not in name}
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
    labels = f'{HERE},engine="{engine}"'
    expected = {record: {f"{record}{{{labels}}}": value} for record, value in figures.items()} | {FIRING: {}}
    if names.accepted_by_position:
        record = "dflash:acceptance_rate_by_position"
        expected[f'{record}{{position="0"}}'] = {f'{record}{{{labels},position="0"}}': 0.75}
    assert not said_of(tmp_path, {**healthy(names), **machine()}, expected)


def test_an_idle_engine_has_no_alert(tmp_path: Path) -> None:
    still = {name: gauge(0) if " " not in name else values for name, values in healthy(VLLM).items()}
    still |= {name: values for name, values in healthy(VLLM).items() if name.startswith(("up", "dflash_start"))}
    assert not said_of(tmp_path, {**still, **machine()}, {FIRING: {}})
