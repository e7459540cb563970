"""The dashboards of Grafana, generated as JSON from their panels.

A panel has what it shows, its unit, and what to do if it is red. The panels, in their order, show:

- the engines: their answers, their drafts and their capacity
- the machine: memory, processors, disks, GPUs and the ports of the link
- the front: the router, and the endpoint as clients see it
- the API keys: who sends requests, how many tokens they get, and which are refused
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_deploy.features.monitoring.rules import limit
from dflash_deploy.serve.settings import Settings

Unit = Literal[
    "short", "s", "percentunit", "bytes", "celsius", "watt", "reqps", "none", "dateTimeAsIso", "tokens/s", "1/s"
]
"""A unit of Grafana; the two with a slash are shown as they are."""

CHOSEN = 'deployment=~"$deployment"'
"""The deployments that are selected at the top of the dashboard."""

BY_REPLICA = "{{deployment}} {{replica}}"
BY_MACHINE = "{{instance}}"


@dataclass(frozen=True)
class Curve:
    """One expression and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `red`: what to do if its value is bad."""

    title: str
    curves: tuple[Curve, ...]
    unit: Unit
    says: str
    red: str
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12


def series(record: str, legend: str = BY_REPLICA, matchers: str = "") -> Curve:
    """A recorded metric of the selected deployments."""
    return Curve(f"dflash:{record}{{{', '.join(filter(None, (CHOSEN, matchers)))}}}", legend)


def of_limit(name: str) -> Curve:
    """A limit of the selected deployments."""
    return Curve(f"{limit(name)}{{{CHOSEN}}}", "limit")


UP = Panel(
    "Engines that answer",
    (Curve(f"sum by (deployment) (dflash:up{{{CHOSEN}}})", "{{deployment}}"),),
    "none",
    "How many engines answer /metrics.",
    "dflash-deploy status names the cause.",
    kind="stat",
    width=6,
)
STARTED = Panel(
    "Started",
    (Curve(f"dflash:start_time_seconds{{{CHOSEN}}} * 1000", BY_REPLICA),),
    "dateTimeAsIso",
    "When each engine was started.",
    "If it is not when you started it: dflash-deploy status names how the engine ended.",
    kind="stat",
    width=6,
)
ALERTS_FIRING = Panel(
    "Alerts",
    (Curve(f'count(ALERTS{{alertstate="firing",{CHOSEN}}}) or vector(0)', "alerts"),),
    "none",
    "How many alerts fire now.",
    "docs/reference/alerts.md has a runbook for each alert.",
    kind="stat",
    width=6,
)
LENGTH_NOW = Panel(
    "Acceptance length now",
    (series("acceptance_length"),),
    "none",
    "Mean tokens per step, the target's own included.",
    "Below 1.5 drafts do not pay: open the dashboard Speculative decoding.",
    kind="stat",
    width=6,
)
TOKENS = Panel(
    "Generated tokens",
    (series("tokens_per_second"),),
    "tokens/s",
    "Generated tokens per second of each engine.",
    "If it is zero with running requests the engine hangs: dflash-deploy restart.",
)
REQUESTS = Panel(
    "Requests",
    (series("running", "running {{replica}}"), series("queue", "waiting {{replica}}"), of_limit("queue")),
    "short",
    f"Running and waiting requests, and {Settings.max_num_seqs} as the limit.",
    "If as many wait as run, add an engine or limit a key.",
)
TTFT = Panel(
    "Time to first token",
    (series("ttft_seconds:p50", "p50 {{replica}}"), series("ttft_seconds:p95", "p95 {{replica}}")),
    "s",
    "How long clients wait for the first token.",
    "Check the queue first, then the length of prompts (Capacity).",
)
TPOT = Panel(
    "Time per output token",
    (series("tpot_seconds:mean", "mean {{replica}}"),),
    "s",
    "Mean time between two tokens of an answer.",
    "If it grows with the same load, check acceptance length and GPU clocks.",
)
LENGTH = Panel(
    "Acceptance length",
    (series("acceptance_length"), of_limit("acceptance_length")),
    "none",
    "Mean tokens per step over time, and the length at which drafts stop to pay.",
    "A fall at one time has a cause then: other prompts, a changed setting, another engine version.",
)
BY_POSITION = Panel(
    "Acceptance rate by position",
    (
        Curve(
            f"avg by (deployment, position) (dflash:acceptance_rate_by_position{{{CHOSEN}}})",
            "position {{position}}",
        ),
    ),
    "percentunit",
    "Share of drafts whose token at this position was accepted.",
    "A low rate at position 0 means a wrong drafter; a steep fall means too many draft tokens (dflash-deploy tune).",
)
DRAFTS = Panel(
    "Drafts",
    (series("drafts_per_second"),),
    "1/s",
    "Steps with draft tokens per second.",
    "Zero while tokens are generated: dflash-deploy test --only drafts.",
)
WASTED = Panel(
    "Accepted and rejected draft tokens",
    (
        series("accepted_tokens_per_second", "accepted {{replica}}"),
        series("wasted_draft_tokens_per_second", "rejected {{replica}}"),
    ),
    "tokens/s",
    "Draft tokens that became output, and those that the target rejected.",
    "If most are rejected at high concurrency, use fewer draft tokens: dflash-deploy tune.",
)
RATE = Panel(
    "Acceptance rate",
    (series("acceptance_rate"),),
    "percentunit",
    "Share of draft tokens that were accepted.",
    "Compare it with the published acceptance of the drafter (docs/reference/speeds.md).",
)
SPEEDUP = Panel(
    "Speed-up over decoding without drafts",
    (series("speedup_over_plain"),),
    "none",
    "Time per output token that `bench --baseline` measured without drafts, at the same concurrency, over that now. "
    "No data: run `dflash-deploy bench --baseline`, then `dflash-deploy monitor up` again.",
    "Below 1 drafts cost more than they save: use fewer draft tokens (dflash-deploy tune), or serve fewer at once.",
)
LOAD = Panel(
    "Load",
    (series("load"),),
    "percentunit",
    f"Running requests as a share of {Settings.max_num_seqs}.",
    "At 100 % further requests wait. Raise the limit if the KV cache has room.",
)
QUEUE = Panel(
    "Waiting requests",
    (series("queue"), of_limit("queue")),
    "short",
    "Requests that wait for a place.",
    "Above the limit for minutes: add an engine, or limit a key.",
)
QUEUE_TIME = Panel(
    "Time in the queue",
    (series("queue_seconds:p95", "p95 {{replica}}"), of_limit("queue_seconds")),
    "s",
    "How long requests wait before they run.",
    "Clients give up: add an engine, or limit a key.",
)
KV = Panel(
    "KV cache",
    (series("kv_usage"), of_limit("kv_usage")),
    "percentunit",
    "Used share of the KV cache.",
    f"Full: lower {Settings.max_num_seqs} or {Settings.max_model_len}, or use an FP8 KV cache.",
)
PREEMPTIONS = Panel(
    "Preemptions",
    (series("preemptions_per_second"),),
    "1/s",
    "Requests that lose their place and are computed again.",
    f"Any is too many: lower {Settings.max_num_seqs}.",
)
PREFILL = Panel(
    "Prefill and decode",
    (series("prompt_tokens_per_second", "read {{replica}}"), series("tokens_per_second", "generated {{replica}}")),
    "tokens/s",
    "Tokens of prompts beside generated tokens.",
    "If prompts dominate, decoding waits for them: prefix caching helps if prompts share their beginning.",
)


MEMORY = Panel(
    "Memory left",
    (series("memory_available_bytes", BY_MACHINE), of_limit("memory_available_bytes")),
    "bytes",
    "Memory that programs can still get. With unified memory this is the GPU's memory too.",
    f"Below the limit: end other programs, or lower {Settings.gpu_memory_utilization}.",
)
CPU = Panel(
    "Processors",
    (series("cpu_busy", BY_MACHINE),),
    "percentunit",
    "Busy share of the processors.",
    "An engine on a GPU needs about one core; more load than that has another cause.",
)
DISK = Panel(
    "Disk left",
    (series("disk_available", BY_MACHINE), of_limit("disk_available")),
    "percentunit",
    "Free share of the fullest file system.",
    "Remove old images (docker system df) or weights.",
)
GPU_TEMPERATURE = Panel(
    "GPU temperature",
    (series("gpu_temperature_celsius", "{{instance}} {{gpu}}"), of_limit("gpu_temperature_celsius")),
    "celsius",
    "Temperature of each GPU.",
    "Above the limit the GPU becomes slower: check fans and air.",
)
GPU_POWER = Panel(
    "GPU power",
    (series("gpu_power_watts", "{{instance}} {{gpu}}"),),
    "watt",
    "Power of each GPU.",
    "Much less than usual under load: the GPU throttles, or waits for the processor.",
)
GPU_BUSY = Panel(
    "GPU use",
    (series("gpu_busy", "{{instance}} {{gpu}}"),),
    "percentunit",
    "Share of the time in which the GPU computes.",
    "Low under load: the engine waits for the processor, the network or the client.",
)
FABRIC = Panel(
    "Ports of the link",
    (series("fabric_ports_active", BY_MACHINE),),
    "none",
    "Active ports of the link between machines (RoCE, InfiniBand).",
    "One less than before: check cables with ip link and rdma link.",
)


ROUTER_ENGINES = Panel(
    "Engines that the router uses",
    (
        Curve(
            f"sum by (deployment) (dflash:router:engine_used{{{CHOSEN}}}) "
            f"or sum by (deployment) (dflash:router:up{{{CHOSEN}}}) * 0",
            "{{deployment}}",
        ),
    ),
    "none",
    "How many engines the router sends requests to.",
    "dflash-deploy status shows the state of each engine.",
    kind="stat",
    width=6,
)
ROUTER_UP = Panel(
    "Router",
    (series("router:up", "{{deployment}}"),),
    "none",
    "1 if the router answers.",
    "dflash-deploy up starts it again.",
    kind="stat",
    width=6,
)
ENDPOINT_UP = Panel(
    "Endpoint",
    (series("endpoint:up", BY_MACHINE),),
    "none",
    "1 if the endpoint answers as clients reach it.",
    "dflash-deploy doctor checks the domain, its records and ports.",
    kind="stat",
    width=6,
)
CERTIFICATE = Panel(
    "Certificate",
    (series("endpoint:certificate_seconds", BY_MACHINE),),
    "s",
    "How long the certificate stays valid.",
    "Caddy did not renew it: dflash-deploy doctor.",
    kind="stat",
    width=6,
)
ROUTER_ANSWERS = Panel(
    "Answers of the router",
    (series("router:answers_per_second", "{{deployment}}"),),
    "reqps",
    "Answers of the router per second.",
    "None although clients ask: dflash-deploy status.",
)
ROUTER_FAILED = Panel(
    "Errors of the router",
    (series("router:failed", "{{deployment}}"), of_limit("router_failed")),
    "percentunit",
    "Share of the answers with an HTTP status of 500 or above.",
    "dflash-deploy logs shows which engine fails.",
)


REQUESTS_BY_KEY = Panel(
    "Requests by key",
    (Curve(f"sum by (name) (dflash:key:requests_per_second{{{CHOSEN}}})", "{{name}}"),),
    "reqps",
    "Who sends requests, by the name of the key.",
    "dflash-deploy keys add can give a key a limit.",
)
KEY_TOKENS = Panel(
    "Generated tokens by key",
    (Curve(f"sum by (name) (dflash:key:tokens_per_second{{{CHOSEN}}})", "{{name}}"),),
    "tokens/s",
    "Generated tokens per second by the name of the key.",
    "One key that uses all: give it a limit of tokens per minute.",
)
KEY_PROMPTS = Panel(
    "Tokens read by key",
    (Curve(f"sum by (name) (dflash:key:prompt_tokens_per_second{{{CHOSEN}}})", "{{name}}"),),
    "tokens/s",
    "Tokens of prompts per second by the name of the key.",
    "Long prompts delay the answers of others: give the key a limit.",
)
KEY_STATUS = Panel(
    "Requests by status",
    (Curve(f"sum by (name, status) (dflash:key:requests_per_second{{{CHOSEN}}})", "{{name}} {{status}}"),),
    "reqps",
    "Requests by key and HTTP status.",
    "429: the key is at its limit. 5xx: dflash-deploy status. cancelled: clients left before the end.",
)
KEY_FLIGHT = Panel(
    "Requests in flight by key",
    (Curve(f"sum by (name) (dflash:key:in_flight{{{CHOSEN}}})", "{{name}}"),),
    "short",
    "Requests at this moment by the name of the key.",
    "If one key fills the queue, limit its requests in flight.",
)
REFUSED = Panel(
    "Refused requests",
    (series("refused_per_second"), of_limit("refused_per_second")),
    "reqps",
    "Requests without a valid key.",
    "A client sends an old key, or a client guesses keys: the runbook of RequestsRefused says which log has addresses.",
)


SCHEMA_VERSION = 39
"""Of Grafana's dashboards: Grafana 10.4 and later read it, and convert it themselves."""

HEIGHT, COLUMNS = 8, 24
"""Of a panel, in rows of Grafana's grid; and the width of the grid."""

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: the name of its file, its title, and its panels in their order."""

    name: str
    title: str
    panels: Sequence[Panel]


DASHBOARDS = (
    Dashboard(
        "overview",
        "DFlash: overview",
        (
            UP,
            STARTED,
            ALERTS_FIRING,
            LENGTH_NOW,
            TOKENS,
            REQUESTS,
            TPOT,
            TTFT,
            REQUESTS_BY_KEY,
        ),
    ),
    Dashboard(
        "speculative-decoding",
        "DFlash: speculative decoding",
        (LENGTH, SPEEDUP, BY_POSITION, DRAFTS, WASTED, RATE, TPOT),
    ),
    Dashboard(
        "capacity",
        "DFlash: capacity",
        (LOAD, QUEUE, PREFILL, QUEUE_TIME, KV, PREEMPTIONS),
    ),
    Dashboard(
        "machine",
        "DFlash: machine",
        (
            MEMORY,
            CPU,
            DISK,
            GPU_TEMPERATURE,
            GPU_POWER,
            GPU_BUSY,
            FABRIC,
        ),
    ),
    Dashboard(
        "keys",
        "DFlash: keys",
        (
            KEY_TOKENS,
            KEY_PROMPTS,
            KEY_STATUS,
            KEY_FLIGHT,
            REFUSED,
        ),
    ),
    Dashboard(
        "front",
        "DFlash: router and endpoint",
        (
            ROUTER_UP,
            ROUTER_ENGINES,
            ENDPOINT_UP,
            CERTIFICATE,
            ROUTER_ANSWERS,
            ROUTER_FAILED,
        ),
    ),
)


def dashboard_files() -> Mapping[str, str]:
    """The text of each dashboard by its path in `monitoring/`."""
    return {f"dashboards/{one.name}.json": dashboard_text(one) for one in DASHBOARDS}


def dashboard_text(of: Dashboard) -> str:
    """One dashboard as Grafana imports it."""
    document = {
        "uid": f"dflash-{of.name}",
        "title": of.title,
        "tags": ["dflash"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": [_STARTS]},
        "templating": {"list": [_SOURCES, _DEPLOYMENTS]},
        "links": [{"type": "dashboards", "tags": ["dflash"], "title": "DFlash", "asDropdown": True}],
        "panels": list(_placed(of.panels)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _placed(of: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """The panels from left to right, in rows."""
    x = y = 0
    for number, panel in enumerate(of, 1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + HEIGHT
        yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": HEIGHT})
        x += panel.width


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": curve.expr, "legendFormat": curve.legend}
        for index, curve in enumerate(panel.curves)
    ]
    # a unit that Grafana does not know is written behind the number
    unit = f"suffix: {panel.unit}" if "/" in panel.unit else panel.unit
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": f"{panel.says}\n\nIf it is red: {panel.red}",
        "gridPos": dict(place),
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": targets,
    }


_SOURCES = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_DEPLOYMENTS = {
    "name": "deployment",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": {"query": "label_values(dflash:up, deployment)", "refId": "deployment"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}
_STARTS = {
    "name": "Starts",
    "datasource": _DATASOURCE,
    "enable": True,
    "iconColor": "blue",
    "expr": f"changes(dflash:start_time_seconds{{{CHOSEN}}}[1m]) > 0",
    "titleFormat": "started",
    "textFormat": "{{deployment}} {{replica}}",
}
"""Marks in every panel: an engine was started."""
