"""Address and log reader of a deployment's engine, and what it publishes under its domain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.front import ROOT, storage_of
from dflash_deploy.diagnosis.diagnose import LogReader
from dflash_deploy.door import published_site
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host.ports import reached
from dflash_deploy.plan.command import model_path
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.client.endpoint import Endpoint
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan


def endpoint_of(deployment: Deployment, plan: Plan, *, timeout: float | None = None) -> Endpoint:
    """Return the endpoint of a deployment, as reached from this machine.

    Raises SettingsRefused for a key that no request can contain.
    """
    # the HTTP client takes 0.1 s, and `down` and `logs` ask no endpoint
    from dflash_deploy.client.endpoint import Endpoint  # noqa: PLC0415

    key = deployment.key.reveal()
    if not (key.isascii() and key.isprintable()):
        raise SettingsRefused(
            f"{Settings.vllm_api_key} has characters that no request can contain",
            hint="make a new key: `dflash-deploy keys rotate`",
        )
    model = model_name(plan)
    url = url_of(plan)
    return Endpoint(url, deployment.key, model, timeout=timeout) if timeout else Endpoint(url, deployment.key, model)


def model_name(plan: Plan) -> str:
    """Return the name of the model in requests."""
    return next(iter(plan.settings.served_model_name), model_path(plan))


def url_of(plan: Plan) -> str:
    """Return the URL at which this machine reaches an endpoint, without a domain's TLS."""
    return f"http://{reached(plan.settings.dflash_bind, plan.settings.dflash_port)}"


def log_reader_for(plan: Plan) -> LogReader:
    """Return the log reader for a plan's engine, with the known failures of the catalog."""
    return LogReader(load_catalog().failures, plan.engine.engine, plan.engine_version)


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
