"""What is known of a deployment's engine before it is asked: its address, and how its log is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.diagnose import LogReader
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
