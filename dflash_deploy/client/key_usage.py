"""What each key used, from the counters that the gateway adds to /metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dflash_deploy.client.exposition import read_samples


@dataclass
class KeyUsage:
    """The use of one key since the engine's start: requests by status, tokens read and generated, requests in flight.

    A status is that of HTTP, or `cancelled` for a request that the client left.
    """

    name: str
    requests: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    in_flight: int = 0

    def document(self) -> dict[str, object]:
        """The use as JSON."""
        return {
            "name": self.name,
            "requests": dict(sorted(self.requests.items())),
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "in_flight": self.in_flight,
        }


def read_key_usage(exposition: str) -> list[KeyUsage]:
    """Read the text of /metrics. Raises ValueError if it is not such a text."""
    ours = "\n".join(line for line in exposition.splitlines() if line.startswith("dflash_key_"))
    found: defaultdict[str, KeyUsage] = defaultdict(lambda: KeyUsage(""))
    for sample in read_samples(f"{ours}\n"):
        if name := sample.labels.get("name", ""):
            found[name].name = name
            _add(found[name], sample.name, sample.labels, int(sample.value))
    return [found[name] for name in sorted(found)]


def added_up(usage: Iterable[KeyUsage]) -> list[KeyUsage]:
    """What each key used on several engines together, by name."""
    sums: dict[str, KeyUsage] = {}
    for used in usage:
        total = sums.setdefault(used.name, KeyUsage(used.name))
        for status, count in used.requests.items():
            total.requests[status] = total.requests.get(status, 0) + count
        total.prompt_tokens += used.prompt_tokens
        total.generation_tokens += used.generation_tokens
        total.in_flight += used.in_flight
    return [sums[name] for name in sorted(sums)]


def _add(used: KeyUsage, counter: str, labels: Mapping[str, str], count: int) -> None:
    match counter:
        case "dflash_key_requests_total":
            used.requests[labels.get("status", "")] = count
        case "dflash_key_prompt_tokens_total":
            used.prompt_tokens = count
        case "dflash_key_generation_tokens_total":
            used.generation_tokens = count
        case "dflash_key_requests_in_flight":
            used.in_flight = count
