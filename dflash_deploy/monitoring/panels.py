"""The panels of the engines: their answers, their drafts and their capacity."""

from __future__ import annotations

from dflash_deploy.monitoring.panel import BY_REPLICA, CHOSEN, Curve, Panel, of_limit, series
from dflash_deploy.serve.settings import Settings

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
