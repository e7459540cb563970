"""The panels of the dashboards: what each shows, in which unit, and what to do if it is red."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_deploy.monitoring.limits import limit
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
REQUESTS_BY_KEY = Panel(
    "Requests by key",
    (Curve(f"sum by (name) (dflash:key:requests_per_second{{{CHOSEN}}})", "{{name}}"),),
    "reqps",
    "Who sends requests, by the name of the key.",
    "dflash-deploy keys add can give a key a limit.",
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
