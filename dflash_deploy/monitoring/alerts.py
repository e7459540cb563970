"""The alerts of the engines, and all alerts together."""

from __future__ import annotations

from datetime import timedelta

from dflash_deploy.monitoring.alert import Alert, beyond
from dflash_deploy.monitoring.front import FRONT_ALERTS
from dflash_deploy.monitoring.labels import BY_ENGINE, BY_TARGET, DEPLOYMENT
from dflash_deploy.monitoring.limits import limit
from dflash_deploy.monitoring.machine import MACHINE_ALERTS
from dflash_deploy.serve.settings import Settings

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
