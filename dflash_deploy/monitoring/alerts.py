"""Alerts: the condition, how long it lasts, and the runbook: cause, what to check, the command that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_deploy.monitoring.labels import BY_ENGINE, BY_TARGET, DEPLOYMENT
from dflash_deploy.monitoring.limits import limit
from dflash_deploy.serve.settings import Settings

Severity = Literal["page", "warning"]
"""`page`: requests fail or soon will; `warning`: it is slower than it could be, or will fail if nothing is done."""

RUNBOOK = "https://github.com/dflash-deploy/dflash-deploy/blob/main/docs/reference/alerts.md"


@dataclass(frozen=True)
class Alert:
    """One alert and its runbook. `lasts` is how long the condition holds before the alert fires, as in Prometheus."""

    name: str
    expr: str
    lasts: str
    severity: Severity
    summary: str
    cause: str
    check: str
    command: str
    needs: str = ""

    @property
    def runbook(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


def _beyond(series: str, comparison: str, name: str) -> str:
    return f"{series} {comparison} on ({DEPLOYMENT}) group_left () {limit(name)}"


_NODE = "node exporter"
_GPU = "DCGM exporter"

ALERTS: tuple[Alert, ...] = (
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
        "The last lines of the log and the GPU's state. In a container the health check restarts the engine.",
        "dflash-deploy restart",
    ),
    Alert(
        "QueueGrows",
        _beyond("dflash:queue", ">", "queue"),
        "5m",
        "warning",
        "{{ $value }} requests wait for {{ $labels.instance }}",
        f"More requests arrive than the engine answers: more than {Settings.max_num_seqs} wait beside those that run.",
        f"Who sends them, and whether the KV cache or {Settings.max_num_seqs} limits the concurrency.",
        "dflash-deploy keys usage",
    ),
    Alert(
        "QueueSlow",
        _beyond("dflash:queue_seconds:p95", ">", "queue_seconds"),
        "5m",
        "page",
        "requests wait {{ $value | humanizeDuration }} for {{ $labels.instance }} (p95)",
        "The engine is overloaded for longer than clients wait.",
        "Who sends the requests; limit a key, or add an engine.",
        "dflash-deploy keys usage",
    ),
    Alert(
        "KVCacheFull",
        _beyond("dflash:kv_usage", ">", "kv_usage"),
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
        _beyond("dflash:ttft_seconds:p95", ">", "ttft_seconds"),
        "5m",
        "warning",
        "the first token of {{ $labels.instance }} takes {{ $value | humanizeDuration }} (p95)",
        "Requests wait in the queue, prompts are longer than planned, or the prefix cache is off.",
        "The queue first; then the length of prompts, and the prefill beside decode on the dashboard Capacity.",
        "dflash-deploy status --watch 5",
    ),
    Alert(
        "AcceptanceFell",
        f"({_beyond('dflash:acceptance_length', '<', 'acceptance_length')} or dflash:acceptance_length "
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
        "RestartLoop",
        "changes(dflash:start_time_seconds[1h]) > 3",
        "0m",
        "page",
        "{{ $labels.instance }} was restarted {{ $value }} times within an hour",
        "The engine ends again and again, or the health check restarts an engine that hangs.",
        "The cause that the log names for the last end.",
        "dflash-deploy status",
    ),
    Alert(
        "MemoryLow",
        _beyond("dflash:memory_available_bytes", "<", "memory_available_bytes"),
        "2m",
        "page",
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B of memory left",
        f"Other programs need memory, or {Settings.gpu_memory_utilization} is too high; unified memory freezes.",
        "What else runs on the machine; the share that the profile allows.",
        "dflash-deploy doctor",
        needs=_NODE,
    ),
    Alert(
        "DiskFull",
        _beyond("dflash:disk_available", "<", "disk_available"),
        "10m",
        "warning",
        "a disk of {{ $labels.instance }} has {{ $value | humanizePercentage }} left",
        "Weights, images, logs or the data of Prometheus fill a file system.",
        "`df -h`, and old images with `docker system df`.",
        "dflash-deploy doctor",
        needs=_NODE,
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
    ),
    Alert(
        "GPUHot",
        _beyond("dflash:gpu_temperature_celsius", ">", "gpu_temperature_celsius"),
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has {{ $value }} °C",
        "Too little air, a fan that stopped, or a power limit that is too high. The GPU becomes slower.",
        "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE` shows whether it throttles.",
        "dflash-deploy doctor",
        needs=_GPU,
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
    ),
)
"""All alerts. They use recorded series only."""
