"""Limits of one deployment, as recording rules, so that the alerts are the same for all deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dflash_deploy.monitoring.labels import DEPLOYMENT
from dflash_deploy.serve.settings import Settings

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
