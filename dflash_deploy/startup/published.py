"""The URL that a deployment publishes under its domain, and the root certificate that clients must trust."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.deployment.front import ROOT, storage_of
from dflash_deploy.door import published_site
from dflash_deploy.startup.engine import endpoint_of, url_of

if TYPE_CHECKING:
    from dflash_deploy.client.endpoint import Endpoint
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan


@dataclass(frozen=True)
class Published:
    """What clients need beside the API key. `url` is without /v1; `root` is `None` if a public authority signs."""

    url: str
    root: Path | None

    @property
    def trusted(self) -> Path | None:
        """The root certificate, as soon as it exists."""
        return self.root if self.root is not None and self.root.is_file() else None


def published_of(deployment: Deployment, plan: Plan) -> Published | None:
    """What a deployment publishes under its domain; `None` without one."""
    site = published_site(plan.settings)
    if site is None:
        return None
    return Published(site.url, storage_of(deployment) / ROOT if site.is_private else None)


def whole_url(deployment: Deployment, plan: Plan) -> str:
    """The URL of a deployment as its clients know it, without /v1."""
    published = published_of(deployment, plan)
    return url_of(plan) if published is None else published.url


METRICS_TIMEOUT = 30.0  # seconds for the counters of the engine


def whole_endpoint(deployment: Deployment, plan: Plan) -> Endpoint:
    """The endpoint that a deployment publishes, with the counters of its engine."""
    # as in `endpoint_of`: `down` and `logs` ask no endpoint
    from dflash_deploy.client.endpoint import PublishedEndpoint  # noqa: PLC0415

    published = published_of(deployment, plan)
    if published is None:
        return endpoint_of(deployment, plan)
    engine = endpoint_of(deployment, plan, timeout=METRICS_TIMEOUT)
    return PublishedEndpoint(published.url, deployment.key, engine.model, engine, root=published.trusted)
