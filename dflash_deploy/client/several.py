"""The published endpoint in front of engines, whose counters are those of all engines together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from dflash_deploy.client.api import Endpoint
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.redact import Secret
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.router.values import ROUTES


class SharedEndpoint(Endpoint):
    """An endpoint that shares its requests out to `engines`, and publishes no metrics itself."""

    def __init__(
        self, url: str, key: Secret, model: str, engines: Sequence[Endpoint], *, root: Path | None = None
    ) -> None:
        super().__init__(url, key, model, root=root)
        self._engines = engines

    def close(self) -> None:
        """Close all connections, also those to the engines."""
        for engine in self._engines:
            engine.close()
        super().close()

    def paths(self) -> list[str]:
        """Return the paths in the descriptions of all engines, and those of the router."""
        return sorted({*ROUTES, *(path for engine in self._engines for path in engine.paths())})

    def metrics(self) -> Metrics:
        """Return the counters of all engines added up. Raises EndpointError if one does not answer."""
        return added([engine.metrics() for engine in self._engines])


def added(readings: Sequence[Metrics]) -> Metrics:
    """The readings of several engines of one kind as those of one."""
    caches = [reading.cache for reading in readings if reading.cache is not None]
    positions = zip_longest(*(reading.drafts.accepted_by_position for reading in readings), fillvalue=0)
    return Metrics(
        readings[0].engine,
        SpecCounters(
            sum(reading.drafts.drafts for reading in readings),
            sum(reading.drafts.draft_tokens for reading in readings),
            sum(reading.drafts.accepted_tokens for reading in readings),
            tuple(sum(counts) for counts in positions),
        ),
        sum(reading.generated_tokens for reading in readings),
        sum(reading.running for reading in readings),
        sum(reading.waiting for reading in readings),
        # the fullest
        max(caches, default=None),
    )
