"""The rules of Prometheus: recorded series with the same names for all engines, and alerts.

Alerts and dashboards use no name of an engine. All recorded series keep the labels that a scrape job sets. An alert has
a condition, how long it lasts, and a runbook: cause, what to check, the command that helps. The limits of one
deployment are recording rules, so that the alerts are the same for all deployments.

The baseline of a deployment is a recording rule too: its time per output token without speculative decoding.
`bench --baseline` measures that time at some concurrencies. Between two of them it is on the line through both, beyond
them it is the nearest one. So each engine is compared at the concurrency that it has, not at the one of the benchmark.

The machine is recorded from node exporter and, with a GPU, DCGM exporter; the front from the router, and from the
endpoint as clients see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricNames
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class Recording:
    """One recording rule. `engine` is the prefix of the metric names that it reads; empty: it is for all engines."""

    record: str
    expr: str
    unit: str
    says: str
    engine: str = ""


@dataclass(frozen=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after the other."""

    name: str
    rules: tuple[Recording, ...]


DEPLOYMENT = "deployment"
"""The name of a deployment: that of its directory."""
REPLICA = "replica"
"""The number of an engine of the deployment, from 1."""
TARGET = (DEPLOYMENT, REPLICA, "instance")
"""The labels of one engine."""
BY_TARGET = ", ".join(TARGET)
BY_ENGINE = f"{BY_TARGET}, engine"
"""The labels of each recorded series of an engine: the target, and `engine`, the prefix of its metric names."""
WINDOW = "2m"
"""The window of rates: eight samples at the interval of 15 s."""
SLOW_WINDOW = "5m"
"""The window of quantiles: a histogram of few requests says little."""
JOB = "dflash"
"""The scrape job of the engines."""
ROUTER_JOB, ENDPOINT_JOB = f"{JOB}-router", f"{JOB}-endpoint"
"""The scrape jobs of the router, and of the endpoint through blackbox exporter."""


GIB = 1 << 30
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class MonitoringLimits:
    """When an alert of one deployment fires. `drafts` is 1 if the deployment makes drafts, else 0.

    Sources: queue times and KV usage are those of public rules for vLLM; an acceptance length of 1.5 is about where
    drafts stop to pay; 88 % of a GB10's memory in use has frozen machines.
    """

    queue: float
    drafts: float
    ttft_seconds: float = 2.0
    queue_seconds: float = 30.0
    kv_usage: float = 0.95
    acceptance_length: float = 1.5
    acceptance_kept: float = 0.6
    memory_available_bytes: float = 1.0 * GIB
    disk_available: float = 0.05
    gpu_temperature_celsius: float = 85.0
    refused_per_second: float = 1.0
    router_failed: float = 0.05
    certificate_seconds: float = 7.0 * DAY


MEANING: Mapping[str, str] = {
    "queue": f"`{Settings.max_num_seqs}`: as many requests wait as run",
    "drafts": "1 if a drafter or an MTP head is set, else 0",
    "ttft_seconds": "2 s; 5 s with unified memory",
    "queue_seconds": "30 s",
    "kv_usage": "95 % of the KV cache",
    "acceptance_length": "1.5 tokens per step, about where drafts stop to pay",
    "acceptance_kept": "60 % of the median of 24 hours",
    "memory_available_bytes": "1 GiB; 4 GiB with unified memory, where the GPU uses the system's memory",
    "disk_available": "5 % of a file system",
    "gpu_temperature_celsius": "85 °C",
    "refused_per_second": "1 request per second",
    "router_failed": "5 % of the answers",
    "certificate_seconds": "7 days; 2 hours with a private authority, whose certificates may last 12 hours",
}
"""Where each limit comes from."""


def limits(*, sequences: int, speculating: bool, unified: bool, private_authority: bool = False) -> MonitoringLimits:
    """The limits of a deployment that runs `sequences` requests together.

    `private_authority`: no public authority signs its certificate.
    """
    limited = MonitoringLimits(sequences, float(speculating))
    if unified:
        limited = replace(limited, ttft_seconds=5.0, memory_available_bytes=4.0 * GIB)
    return replace(limited, certificate_seconds=2 * HOUR) if private_authority else limited


def limit(name: str) -> str:
    """The series of a limit. Raises KeyError for one that does not exist."""
    if name not in MEANING:
        raise KeyError(name)
    return f"dflash:limit:{name}"


def limit_rules(deployment: str, of: MonitoringLimits) -> dict[str, Any]:
    """A file of rules with the limits of a deployment."""
    rules = [
        {
            "record": limit(each.name),
            "expr": f"vector({getattr(of, each.name):.15g})",
            "labels": {DEPLOYMENT: deployment},
        }
        for each in fields(of)
    ]
    # the name of a group is unique within a file only, but people read it in Prometheus' pages
    return {"groups": [{"name": f"dflash-limits-{deployment}", "rules": rules}]}


Severity = Literal["page", "warning"]
"""`page`: requests fail or soon will; `warning`: it is slower than it could be, or will fail if nothing is done."""

RUNBOOK = "https://github.com/dflash-deploy/dflash-deploy/blob/main/docs/reference/alerts.md"


@dataclass(frozen=True)
class Alert:
    """One alert and its runbook. `lasts` is how long the condition holds before the alert fires, as in Prometheus.

    `by_restart`: a restart of the engine can cause it, so the commands that restart one silence it.
    """

    name: str
    expr: str
    lasts: str
    severity: Severity
    summary: str
    cause: str
    check: str
    command: str
    needs: str = ""
    by_restart: bool = True

    @property
    def runbook(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


def beyond(series: str, comparison: str, name: str) -> str:
    """The condition that a series is beyond a limit of its deployment."""
    return f"{series} {comparison} on ({DEPLOYMENT}) group_left () {limit(name)}"


BASELINE, CONCURRENCY = "dflash:baseline:tpot_seconds", "dflash:concurrency"
"""The series of the rule, and the one that it reads."""

SPEEDUP = "dflash:speedup_over_plain"
"""The series that compares an engine with its baseline."""


def baseline_rules(deployment: str, tpot_seconds: Mapping[int, float]) -> dict[str, Any]:
    """A file of rules with the one for the times of a deployment by concurrency; without any it has no rule."""
    if not tpot_seconds:
        return {"groups": []}
    rule = {"record": BASELINE, "expr": _expr(deployment, tpot_seconds)}
    return {"groups": [{"name": f"dflash-baseline-{deployment}", "rules": [rule]}]}


def _expr(deployment: str, tpot_seconds: Mapping[int, float]) -> str:
    """Lines from point to point: the first time, and the change of slope at each concurrency."""
    here = f'{CONCURRENCY}{{{DEPLOYMENT}="{deployment}"}}'
    changes = (f"{change:.6g} * clamp_min({here} - {at}, 0)" for at, change in _bends(tpot_seconds))
    return " + ".join((f"{tpot_seconds[min(tpot_seconds)]:.6g}", *changes))


def _bends(tpot_seconds: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """Each concurrency with the change of slope there: below the first and above the last one the line is level."""
    known = sorted(tpot_seconds.items())
    slopes = [0.0, *((after - time) / (there - at) for (at, time), (there, after) in pairwise(known)), 0.0]
    for (at, _), (before, behind) in zip(known, pairwise(slopes), strict=True):
        yield at, behind - before


MACHINE = (
    Recording(
        "dflash:memory_available_bytes",
        f"min by ({DEPLOYMENT}, instance) (node_memory_MemAvailable_bytes)",
        "bytes",
        "Memory that programs can still get. On unified memory this is the GPU's memory too.",
    ),
    Recording(
        "dflash:disk_available",
        f'min by ({DEPLOYMENT}, instance) (node_filesystem_avail_bytes{{fstype!~"tmpfs|overlay|squashfs"}} '
        f'/ (node_filesystem_size_bytes{{fstype!~"tmpfs|overlay|squashfs"}} > 0))',
        "share",
        "Free share of the fullest file system.",
    ),
    Recording(
        "dflash:cpu_busy",
        f'1 - avg by ({DEPLOYMENT}, instance) (rate(node_cpu_seconds_total{{mode="idle"}}[{WINDOW}]))',
        "share",
        "Busy share of the processors.",
    ),
    Recording(
        "dflash:fabric_ports_active",
        f"sum by ({DEPLOYMENT}, instance) (node_infiniband_state_id == bool 4)",
        "ports",
        "Ports of the link between the machines that are active (RoCE, InfiniBand).",
    ),
    Recording(
        "dflash:gpu_temperature_celsius",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_GPU_TEMP)",
        "°C",
        "Temperature of each GPU.",
    ),
    Recording(
        "dflash:gpu_power_watts",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_POWER_USAGE)",
        "W",
        "Power of each GPU.",
    ),
    Recording(
        "dflash:gpu_busy",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_GPU_UTIL) / 100",
        "share",
        "Share of the time in which a GPU computes.",
    ),
    Recording(
        "dflash:gpu_errors",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_XID_ERRORS)",
        "Xid",
        "Number of the last Xid error of a GPU; 0 if there was none.",
    ),
)
"""Rules for node exporter and, with a GPU, DCGM exporter. GB10 has no field for GPU memory (DCGM_FI_DEV_FB_*)."""

_NODE = "node exporter"
_GPU = "DCGM exporter"

MACHINE_ALERTS = (
    Alert(
        "MemoryLow",
        beyond("dflash:memory_available_bytes", "<", "memory_available_bytes"),
        "2m",
        "page",
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B of memory left",
        f"Other programs need memory, or {Settings.gpu_memory_utilization} is too high; unified memory freezes.",
        "What else runs on the machine; the share that the profile allows.",
        "dflash-deploy doctor",
        needs=_NODE,
        by_restart=False,
    ),
    Alert(
        "DiskFull",
        beyond("dflash:disk_available", "<", "disk_available"),
        "10m",
        "warning",
        "a disk of {{ $labels.instance }} has {{ $value | humanizePercentage }} left",
        "Weights, images, logs or the data of Prometheus fill a file system.",
        "`df -h`, and old images with `docker system df`.",
        "dflash-deploy doctor",
        needs=_NODE,
        by_restart=False,
    ),
    Alert(
        "FabricDown",
        "dflash:fabric_ports_active < max_over_time(dflash:fabric_ports_active[1h])",
        "1m",
        "page",
        "{{ $labels.instance }} lost a port of the link between the machines",
        "A cable, a transceiver or a driver of the link (RoCE, InfiniBand). Engines over several machines hang.",
        "`ip link` and `rdma link` on both machines.",
        "dflash-deploy doctor",
        needs=f"{_NODE}, InfiniBand or RoCE",
        by_restart=False,
    ),
    Alert(
        "GPUHot",
        beyond("dflash:gpu_temperature_celsius", ">", "gpu_temperature_celsius"),
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has {{ $value }} °C",
        "Too little air, a fan that stopped, or a power limit that is too high. The GPU becomes slower.",
        "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE` shows whether it throttles.",
        "dflash-deploy doctor",
        needs=_GPU,
        by_restart=False,
    ),
    Alert(
        "GPUError",
        "dflash:gpu_errors > 0",
        "0m",
        "page",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} reports Xid {{ $value }}",
        "The driver reports an error of the GPU or of a kernel: Xid 31 is a memory access of a program, 79 a lost GPU.",
        "The kernel log (`dmesg | grep Xid`) and the engine's log at the same time.",
        "dflash-deploy status",
        needs=_GPU,
        by_restart=False,
    ),
)


_BY = f"{DEPLOYMENT}, instance"
_BY_WORKER = f"{_BY}, worker"
_ANSWERS = f'sum by ({_BY}) (rate(smg_http_responses_total{{path=~"/v1/.+"}}[{WINDOW}]))'
_FAILURES = f'sum by ({_BY}) (rate(smg_http_responses_total{{path=~"/v1/.+",status_code=~"5.."}}[{WINDOW}]))'

FRONT = (
    Recording(
        "dflash:router:up", f'min by ({_BY}) (up{{job="{ROUTER_JOB}"}})', "0 or 1", "Whether the router answers."
    ),
    Recording(
        "dflash:router:engine_used",
        # -1: removed. smg_worker_stalled is left out: it is 1 under load too, and stays after a removal
        f"min by ({_BY_WORKER}) (smg_worker_health >= 0) * (max by ({_BY_WORKER}) (smg_worker_cb_state) != bool 1)",
        "0 or 1",
        "Whether the router sends requests to an engine of its list: not to one that is unhealthy or fails.",
    ),
    Recording("dflash:router:answers_per_second", _ANSWERS, "1/s", "Answers of the router per second."),
    Recording(
        "dflash:router:failed",
        f"({_FAILURES} or {_ANSWERS} * 0) / ({_ANSWERS} > 0)",
        "share",
        "Share of the router's answers with an HTTP status of 500 or above.",
    ),
    Recording(
        "dflash:endpoint:up",
        f'min by ({_BY}) (probe_success{{job="{ENDPOINT_JOB}"}})',
        "0 or 1",
        "Whether the endpoint answers GET /health as clients reach it.",
    ),
    Recording(
        "dflash:endpoint:certificate_seconds",
        f'min by ({_BY}) (probe_ssl_earliest_cert_expiry{{job="{ENDPOINT_JOB}"}}) - time()',
        "s",
        "How long the certificate of the endpoint stays valid.",
    ),
)
"""Rules for SMG, whose breaker is open at 1, and for blackbox exporter."""

_ROUTER = "a router"
_PROBE = "blackbox exporter"

FRONT_ALERTS = (
    Alert(
        "RouterDown",
        "dflash:router:up == 0",
        "1m",
        "page",
        "the router at {{ $labels.instance }} does not answer",
        "The router ended or hangs, and requests do not reach the engines. In containers the door may have ended "
        "instead, or the key of Prometheus is rejected.",
        "The state of the router, and its lines in the log.",
        "dflash-deploy up",
        needs=_ROUTER,
    ),
    Alert(
        "RouterLostEngine",
        "dflash:router:engine_used == 0",
        "1m",
        "warning",
        "the router sends nothing to {{ $labels.worker }}",
        "The engine ended, hangs, or fails requests. The other engines get its requests.",
        "The state of each engine and the cause that its log names.",
        "dflash-deploy status",
        needs=_ROUTER,
    ),
    Alert(
        "RouterNoEngine",
        # also if no engine is on its list
        f"(max by ({_BY}) (dflash:router:engine_used) or (dflash:router:up > 0) * 0) == 0",
        "30s",
        "page",
        "the router of {{ $labels.deployment }} has no engine left",
        "All engines ended, hang, fail requests, or were stopped. Each request is answered with 503.",
        "The state of each engine and the cause that its log names.",
        "dflash-deploy up",
        needs=_ROUTER,
    ),
    Alert(
        "RouterErrors",
        beyond("dflash:router:failed", ">", "router_failed"),
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the answers of the router are errors",
        "Engines end or reset connections, and other engines do not take their requests over.",
        "Which engine fails: the alerts of the engines, and the lines of the router in the log.",
        "dflash-deploy logs",
        needs=_ROUTER,
    ),
    Alert(
        "EndpointDown",
        "dflash:endpoint:up == 0",
        "2m",
        "page",
        "{{ $labels.instance }} does not answer as clients reach it",
        "The engine does not answer, the door ended, or DNS, a firewall or the certificate changed.",
        f"EndpointDown without EngineDown: {Settings.dflash_domain}, its DNS records, and the ports of the door.",
        "dflash-deploy doctor",
        needs=_PROBE,
    ),
    Alert(
        "CertificateExpires",
        beyond("dflash:endpoint:certificate_seconds", "<", "certificate_seconds"),
        "1h",
        "page",
        "the certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "Caddy renews a certificate when a third of its time is left; this one was not renewed.",
        "What the authority answers: the lines of the door in the log. Port 80 must be reachable from outside.",
        "dflash-deploy doctor",
        needs=_PROBE,
        by_restart=False,
    ),
)
"""Alerts of what is in front of the engines."""


QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def groups() -> tuple[RuleGroup, ...]:
    """All recording rules: one group for each set of metric names, then those that read only recorded series."""
    prefixes = {engine.metrics.prefix: engine.metrics for engine in ENGINES.values()}
    return (
        *(RuleGroup(f"dflash-{prefix}", tuple(_of_engine(names))) for prefix, names in prefixes.items()),
        RuleGroup("dflash-derived", DERIVED),
        RuleGroup("dflash-gateway", GATEWAY),
        RuleGroup("dflash-machine", MACHINE),
        RuleGroup("dflash-front", FRONT),
    )


@dataclass(frozen=True)
class _Source:
    """One engine's metrics as parts of expressions."""

    names: MetricNames

    def metric(self, name: str) -> str:
        return f"{self.names.prefix}:{name}"

    def rate(self, name: str, *further: str) -> str:
        """A counter's increase per second, by engine and by further labels."""
        by = ", ".join((BY_TARGET, *further))
        return f"sum by ({by}) (rate({self.metric(name)}[{WINDOW}]))"

    def gauge(self, name: str, how: str) -> str:
        return f"{how} by ({BY_TARGET}) ({self.metric(name)})"

    def recorded(self, record: str, expr: str, unit: str, says: str) -> Recording:
        return Recording(f"dflash:{record}", expr, unit, says, self.names.prefix)


def _of_engine(names: MetricNames) -> Iterator[Recording]:
    of = _Source(names)
    yield of.recorded("tokens_per_second", of.rate(names.generated_tokens), "tokens/s", "Generated tokens per second.")
    yield of.recorded("prompt_tokens_per_second", of.rate(names.prompt_tokens), "tokens/s", "Prompt tokens per second.")
    says = "Steps, or tokens, that the engine computes per second; 0 means that it computes nothing."
    yield of.recorded("steps_per_second", of.rate(names.steps), "1/s", says)
    yield of.recorded("running", of.gauge(names.running, "sum"), "requests", "Running requests.")
    yield of.recorded("queue", of.gauge(names.waiting, "sum"), "requests", "Waiting requests.")
    if names.kv_cache_usage:
        usage = of.gauge(names.kv_cache_usage, "max")
        yield of.recorded("kv_usage", usage, "share", "Used share of the KV cache, 0 to 1.")
    if names.preemptions:
        says = "Requests per second that lose their place in the KV cache and are computed again."
        yield of.recorded("preemptions_per_second", of.rate(names.preemptions), "1/s", says)
    yield from _drafts(of)
    yield from _times(of)


def _drafts(of: _Source) -> Iterator[Recording]:
    names = of.names
    drafts = of.rate(names.drafts)
    yield of.recorded("drafts_per_second", drafts, "1/s", "Steps with draft tokens per second.")
    drafted = of.rate(names.draft_tokens) if names.draft_tokens else ""
    if not drafted:
        drafted = f"{drafts} * ({of.gauge(names.step_tokens, 'max')} - 1)"
    yield of.recorded("draft_tokens_per_second", drafted, "tokens/s", "Draft tokens per second.")
    accepted = of.rate(names.accepted_tokens) if names.accepted_tokens else ""
    if not accepted:
        accepted = f"clamp_min({of.rate(names.generated_tokens)} - {drafts}, 0)"
    yield of.recorded("accepted_tokens_per_second", accepted, "tokens/s", "Accepted draft tokens per second.")
    if names.accepted_by_position:
        accepted = of.rate(names.accepted_by_position, "position")
        share = f"{accepted} / on ({BY_TARGET}) group_left () ({drafts} > 0)"
        says = "Share of drafts whose token at this position was accepted; the first position is 0."
        yield of.recorded("acceptance_rate_by_position", share, "share", says)


def _times(of: _Source) -> Iterator[Recording]:
    names = of.names
    histograms = {
        "ttft_seconds": (names.ttft, "Time to first token"),
        "tpot_seconds": (names.tpot, "Time per output token"),
        "queue_seconds": (names.queue_time, "Time in the queue"),
    }
    for record, (name, says) in histograms.items():
        for quantile, value in QUANTILES.items() if name else ():
            buckets = f"sum by ({BY_TARGET}, le) (rate({of.metric(name)}_bucket[{SLOW_WINDOW}]))"
            expr = f"histogram_quantile({value}, {buckets})"
            yield of.recorded(f"{record}:{quantile}", expr, "s", f"{says}, {quantile} of five minutes.")
    seconds, tokens = names.tpot_counters or (f"{names.tpot}_sum", f"{names.tpot}_count")
    mean = f"{of.rate(seconds)} / ({of.rate(tokens)} > 0)"
    yield of.recorded("tpot_seconds:mean", mean, "s", "Time per output token, mean.")


DERIVED = (
    Recording(
        "dflash:acceptance_length",
        "1 + dflash:accepted_tokens_per_second / (dflash:drafts_per_second > 0)",
        "tokens",
        "Acceptance length: mean tokens per step, the target's own included.",
    ),
    Recording(
        "dflash:acceptance_rate",
        "dflash:accepted_tokens_per_second / (dflash:draft_tokens_per_second > 0)",
        "share",
        "Share of draft tokens that were accepted.",
    ),
    Recording(
        "dflash:wasted_draft_tokens_per_second",
        "dflash:draft_tokens_per_second - dflash:accepted_tokens_per_second",
        "tokens/s",
        "Draft tokens per second that were rejected.",
    ),
    Recording(
        "dflash:load",
        f"dflash:running / on ({DEPLOYMENT}) group_left () dflash:limit:queue",
        "share",
        "Running requests as a share of the most that the engine runs together.",
    ),
    Recording(
        CONCURRENCY,
        # an engine without requests has no concurrency to be compared at
        f"avg_over_time((dflash:running > 0)[{WINDOW}:15s])",
        "requests",
        "Running requests, mean of the readings in which there were any.",
    ),
    Recording(
        SPEEDUP,
        f"{BASELINE} / (dflash:tpot_seconds:mean > 0)",
        "ratio",
        "Speed-up over the baseline of `bench --baseline`: time per output token without speculative decoding, over "
        "that now.",
    ),
)
"""Rules that read recorded series only."""

GATEWAY = (
    Recording(
        "dflash:up",
        f'min by ({BY_TARGET}) (up{{{DEPLOYMENT}!="",job="dflash"}})',
        "0 or 1",
        "Whether /metrics answers.",
    ),
    Recording(
        "dflash:start_time_seconds",
        f"max by ({BY_TARGET}) (dflash_start_time_seconds)",
        "s",
        "When the engine was started, in seconds since 1970.",
    ),
    Recording(
        "dflash:key:requests_per_second",
        f"sum by ({BY_TARGET}, name, status) (rate(dflash_key_requests_total[{WINDOW}]))",
        "1/s",
        "Requests per second by the name of the key and HTTP status.",
    ),
    Recording(
        "dflash:key:prompt_tokens_per_second",
        f"sum by ({BY_TARGET}, name) (rate(dflash_key_prompt_tokens_total[{WINDOW}]))",
        "tokens/s",
        "Tokens read per second by the name of the key.",
    ),
    Recording(
        "dflash:key:tokens_per_second",
        f"sum by ({BY_TARGET}, name) (rate(dflash_key_generation_tokens_total[{WINDOW}]))",
        "tokens/s",
        "Generated tokens per second by the name of the key.",
    ),
    Recording(
        "dflash:refused_per_second",
        f"sum by ({BY_TARGET}) (rate(dflash_refused_requests_total[{WINDOW}]))",
        "1/s",
        "Requests per second that were refused because they had no valid key.",
    ),
    Recording(
        "dflash:key:in_flight",
        f"sum by ({BY_TARGET}, name) (dflash_key_requests_in_flight)",
        "requests",
        "Requests in flight by the name of the key.",
    ),
)
"""Rules for what the gateway in front of each engine counts."""


RESTART_LOOP = "RestartLoop"
RESTARTS, RESTART_WINDOW = 3, timedelta(hours=1)
"""More restarts than that within this time are a loop; a health check restarts an engine as often within an hour."""

ENGINE_ALERTS = (
    Alert(
        "EngineDown",
        "dflash:up == 0",
        "2m",
        "page",
        "/metrics of {{ $labels.instance }} does not answer",
        "The engine ended, does not start, or rejects the key of Prometheus. A start takes up to 13 minutes.",
        "The state of the engine and the cause that the log names.",
        "dflash-deploy status",
    ),
    Alert(
        "EngineHangs",
        "(dflash:running + dflash:queue > 0) and dflash:steps_per_second == 0",
        "2m",
        "page",
        "{{ $labels.instance }} has requests and computes nothing",
        "The engine is stuck: a deadlock, a lost machine of several, or a GPU error. Requests wait forever.",
        "The last lines of the log and the GPU's state. In a container the health check restarts the engine. "
        "A llama.cpp that hangs does not answer /metrics either: there it is EngineDown.",
        "dflash-deploy restart",
    ),
    Alert(
        "QueueGrows",
        beyond("dflash:queue", ">", "queue"),
        "5m",
        "warning",
        "{{ $value }} requests wait for {{ $labels.instance }}",
        f"More requests arrive than the engine answers: more than {Settings.max_num_seqs} wait beside those that run.",
        f"Who sends them, and whether the KV cache or {Settings.max_num_seqs} limits the concurrency.",
        "dflash-deploy keys usage",
    ),
    Alert(
        "QueueSlow",
        beyond("dflash:queue_seconds:p95", ">", "queue_seconds"),
        "5m",
        "page",
        "requests wait {{ $value | humanizeDuration }} for {{ $labels.instance }} (p95)",
        "The engine is overloaded for longer than clients wait.",
        "Who sends the requests; limit a key, or add an engine.",
        "dflash-deploy keys usage",
    ),
    Alert(
        "KVCacheFull",
        beyond("dflash:kv_usage", ">", "kv_usage"),
        "5m",
        "warning",
        "the KV cache of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
        "Running requests need the whole KV cache; further ones wait, and vLLM preempts running ones.",
        f"{Settings.max_model_len} and {Settings.max_num_seqs} beside the size of the cache that the plan computes.",
        "dflash-deploy plan",
    ),
    Alert(
        "Preemptions",
        "avg_over_time(dflash:preemptions_per_second[10m]) > 0",
        "0m",
        "warning",
        "{{ $labels.instance }} preempts requests",
        "The KV cache does not hold all running requests: some lose their place and are computed again, drafts too.",
        f"{Settings.max_num_seqs}: fewer sequences that stay are faster than many that are computed twice.",
        "dflash-deploy plan",
    ),
    Alert(
        "TTFTSlow",
        beyond("dflash:ttft_seconds:p95", ">", "ttft_seconds"),
        "5m",
        "warning",
        "the first token of {{ $labels.instance }} takes {{ $value | humanizeDuration }} (p95)",
        "Requests wait in the queue, prompts are longer than planned, or the prefix cache is off.",
        "The queue first; then the length of prompts, and the prefill beside decode on the dashboard Capacity.",
        "dflash-deploy status --watch 5",
    ),
    Alert(
        "AcceptanceFell",
        f"({beyond('dflash:acceptance_length', '<', 'acceptance_length')} or dflash:acceptance_length "
        f"< on ({BY_ENGINE}) (quantile_over_time(0.5, dflash:acceptance_length[1d]) "
        f"* on ({DEPLOYMENT}) group_left () {limit('acceptance_kept')})) and dflash:drafts_per_second > 1",
        "15m",
        "warning",
        "the acceptance length of {{ $labels.instance }} is {{ $value }}",
        "The drafter does not predict what the target says: other prompts than before, a drafter of another target, "
        "a wrong mask token, or decay in the engine.",
        "The acceptance rate by position: low at position 0 means a wrong drafter; see docs/explanation/acceptance.md.",
        "dflash-deploy test --only drafts",
    ),
    Alert(
        "DraftsStopped",
        f"(dflash:tokens_per_second > 1 unless on ({BY_TARGET}) dflash:drafts_per_second > 0) "
        f"and on ({DEPLOYMENT}) {limit('drafts')} > 0",
        "5m",
        "warning",
        "{{ $labels.instance }} generates without drafts although a drafter is set",
        "The engine runs without speculative decoding: started without its drafter, or it disabled drafts under load.",
        f"The engine's command in the log, and whether {Settings.dflash_drafter} is what you expect.",
        "dflash-deploy test --only drafts",
    ),
    Alert(
        "EnginesDiffer",
        f"dflash:acceptance_length < on ({DEPLOYMENT}) group_left () "
        f"0.5 * max by ({DEPLOYMENT}) (dflash:acceptance_length) "
        f"or (dflash:tokens_per_second < on ({DEPLOYMENT}) group_left () "
        f"0.5 * max by ({DEPLOYMENT}) (dflash:tokens_per_second) "
        f"and dflash:running >= on ({DEPLOYMENT}) group_left () max by ({DEPLOYMENT}) (dflash:running) > 0)",
        "15m",
        "warning",
        "{{ $labels.instance }} is less than half as good as the best engine of {{ $labels.deployment }}",
        "One engine of several is slower: another version, a GPU that throttles, or a drafter that is missing there.",
        "The dashboards Overview and Machine, by replica.",
        "dflash-deploy status",
    ),
    Alert(
        RESTART_LOOP,
        f"changes(dflash:start_time_seconds[{RESTART_WINDOW.seconds // 3600}h]) > {RESTARTS}",
        "0m",
        "page",
        "{{ $labels.instance }} was restarted {{ $value }} times within an hour",
        "The engine ends again and again, or the health check restarts an engine that hangs.",
        "The cause that the log names for the last end.",
        "dflash-deploy status",
    ),
    Alert(
        "RequestsRefused",
        beyond("dflash:refused_per_second", ">", "refused_per_second"),
        "5m",
        "warning",
        "{{ $labels.instance }} refuses {{ $value }} requests per second: they have no valid key",
        "A client still sends a key that was rotated or revoked, or guesses keys.",
        "The address that they come from: behind a door only its log has it, else that of vLLM or SGLang. "
        "llama.cpp logs none.",
        "dflash-deploy logs",
        by_restart=False,
    ),
)
"""Alerts of one engine: each has its replica as a label."""

ALERTS: tuple[Alert, ...] = (*ENGINE_ALERTS, *FRONT_ALERTS, *MACHINE_ALERTS)
"""All alerts. They use recorded series only."""
