"""Series as promtool reads them: a healthy deployment of each engine, and what promtool says of the rules for them."""

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

from dflash_deploy.assets import asset_text
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricNames
from tests.support.commands import run_command
from tests.support.debian import program

SERIES = Mapping[str, str]  # values of each series in promtool's notation, at intervals of 30 s
LENGTH = 200  # samples of each series: 100 minutes

# The increase of each bucket in 30 s: ten requests, nine of them faster than half a second.
BUCKETS = {"0.1": 5.0, "0.5": 9.0, "2.5": 10.0, "10": 10.0, "60": 10.0, "+Inf": 10.0}

NODE = 'deployment="tiny",instance="box"'
EDGE = 'deployment="tiny",instance="https://box.example/health"'
ACCEPTANCE_LENGTH = 3.0  # that of a healthy engine: two of seven draft tokens are accepted in each step
HERE = 'deployment="tiny",instance="127.0.0.1:8000"'  # the labels of the engine, as the scrape job sets them

# What is filled in for four sequences, a drafter and unified memory.
LIMITS = {
    "deployment": "tiny",
    "queue": 4,
    "drafts": 1,
    "ttft_seconds": 5,
    "memory_available_bytes": 4 << 30,
    "certificate_seconds": 7 * 86400,
}


def counter(per_interval: float, start: float = 1000) -> str:
    """A counter that grows evenly; 0: it does not move."""
    return f"{start:g}+{per_interval:g}x{LENGTH}"


def gauge(value: float) -> str:
    """A value that stays."""
    return f"{value:g}+0x{LENGTH}"


def healthy(names: MetricNames) -> dict[str, str]:
    """An engine under load: 600 tokens and 200 steps in 30 s."""
    values = {
        names.generated_tokens: counter(600),
        names.prompt_tokens: counter(3000),
        names.running: gauge(3),
        names.waiting: gauge(0),
        names.steps: counter(200),
        names.drafts: counter(200),
    }
    if names.draft_tokens:
        values |= {names.draft_tokens: counter(1400), names.accepted_tokens: counter(400)}
    else:
        values |= {names.step_tokens: gauge(8), names.answers: counter(0)}
    if names.kv_cache_usage:
        values[names.kv_cache_usage] = gauge(0.4)
    if names.preemptions:
        values[names.preemptions] = counter(0)
    seconds, tokens = names.tpot_counters or (f"{names.tpot}_sum", f"{names.tpot}_count")
    # one of them may be the counter of generated tokens
    values = {seconds: counter(12), tokens: counter(600)} | values
    series = {f"{names.prefix}:{name}{{{HERE}}}": written for name, written in values.items()}
    for histogram in (names.ttft, names.tpot, names.queue_time):
        for le, increase in BUCKETS.items() if histogram else ():
            series[f'{names.prefix}:{histogram}_bucket{{{HERE},le="{le}"}}'] = counter(increase)
    for position, increase in enumerate((150, 100, 80, 70, 0, 0, 0)) if names.accepted_by_position else ():
        name = f"{names.prefix}:{names.accepted_by_position}"
        series[f'{name}{{{HERE},position="{position}"}}'] = counter(increase)
    return series | _gateway()


def _gateway() -> dict[str, str]:
    return {
        f'up{{{HERE},job="dflash"}}': gauge(1),
        f"dflash_start_time_seconds{{{HERE}}}": gauge(1795000000),
        f'dflash_key_requests_total{{{HERE},name="owner",status="200"}}': counter(10),
        f'dflash_key_prompt_tokens_total{{{HERE},name="owner"}}': counter(3000),
        f'dflash_key_generation_tokens_total{{{HERE},name="owner"}}': counter(600),
        f'dflash_key_requests_in_flight{{{HERE},name="owner"}}': gauge(3),
        f"dflash_refused_requests_total{{{HERE}}}": counter(0),
    }


def machine() -> dict[str, str]:
    """A machine with two GPUs and a link to another one, as its exporters describe it."""
    return {
        f"node_memory_MemAvailable_bytes{{{NODE}}}": gauge(32e9),
        f'node_filesystem_avail_bytes{{{NODE},fstype="ext4",mountpoint="/"}}': gauge(5e11),
        f'node_filesystem_size_bytes{{{NODE},fstype="ext4",mountpoint="/"}}': gauge(1e12),
        f'node_filesystem_avail_bytes{{{NODE},fstype="tmpfs",mountpoint="/tmp"}}': gauge(0),
        f'node_filesystem_size_bytes{{{NODE},fstype="tmpfs",mountpoint="/tmp"}}': gauge(1e9),
        f'node_cpu_seconds_total{{{NODE},cpu="0",mode="idle"}}': counter(10),
        f'node_infiniband_state_id{{{NODE},device="mlx5_0",port="1"}}': gauge(4),
        f'node_infiniband_state_id{{{NODE},device="mlx5_1",port="1"}}': gauge(1),
        f'DCGM_FI_DEV_GPU_TEMP{{{NODE},gpu="0"}}': gauge(60),
        f'DCGM_FI_DEV_POWER_USAGE{{{NODE},gpu="0"}}': gauge(200),
        f'DCGM_FI_DEV_GPU_UTIL{{{NODE},gpu="0"}}': gauge(90),
        f'DCGM_FI_DEV_XID_ERRORS{{{NODE},gpu="0"}}': gauge(0),
    }


def front() -> dict[str, str]:
    """The endpoint under its domain, as blackbox exporter describes it."""
    return {
        f'probe_success{{{EDGE},job="dflash-endpoint"}}': gauge(1),
        f'probe_ssl_earliest_cert_expiry{{{EDGE},job="dflash-endpoint"}}': gauge(60 * 86400),
    }


def engines() -> dict[str, MetricNames]:
    """The metric names of the engines, each set once."""
    return {engine.metrics.prefix: engine.metrics for engine in ENGINES.values()}


def said_of(place: Path, series: SERIES, expected: Mapping[str, Mapping[str, float]], at: str = "35m") -> str:
    """What promtool says if an expression does not yield these samples at that time; empty if all do.

    `expected` has, for each expression, the value of each sample by its labels.
    """
    for name in ("rules.yaml", "alerts.yaml"):
        (place / name).write_text(asset_text("monitoring", name), "utf-8")
    limits = Template(asset_text("monitoring", "limits.yaml")).substitute(LIMITS)
    (place / "limits.yaml").write_text(limits, "utf-8")
    tests = [
        {"expr": expr, "eval_time": at, "exp_samples": [{"labels": k, "value": v} for k, v in samples.items()]}
        for expr, samples in expected.items()
    ]
    document: dict[str, Any] = {
        "rule_files": ["rules.yaml", "alerts.yaml", "limits.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    (place / "test.yaml").write_text(yaml.safe_dump(document), "utf-8")
    done = run_command(str(program("promtool")), "test", "rules", str(place / "test.yaml"))
    return "" if done.returncode == 0 else done.stdout + done.stderr
