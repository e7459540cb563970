"""Checks before anything starts, the cheapest first and the port last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.errors import PortTaken, PreflightRefused, SettingsRefused
from dflash_deploy.host import foreign_bind, listener_on
from dflash_deploy.plan.command import drafter_directory, engine_command
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.known import is_private
from dflash_deploy.weights import check_weights

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime


def preflight(
    deployment: Deployment, plan: Plan, runtime: Runtime, *, new_key: bool = False, joining: bool = False
) -> None:
    """Check everything that can be checked before a start; raise the first PreflightRefused or SettingsRefused.

    `new_key`: the key is about to be replaced, so the current one is not checked. `joining`: a rank above 0 starts,
    which serves no requests.
    """
    engine_command(plan)
    if not joining and not plan.settings.answers_requests:
        said = f"this machine is rank {plan.settings.node_rank}; only rank 0 serves requests"
        raise PreflightRefused(said, hint="start it with `dflash-deploy up`")
    if not new_key:
        _check_key(deployment)
    for finding in plan.errors:
        raise PreflightRefused(finding.message, hint=finding.fix)
    runtime.preflight()
    published = plan.settings.answers_requests and not is_private(deployment, plan)
    if published and (foreign := foreign_bind(plan.settings.dflash_bind)) is not None:
        raise PreflightRefused(foreign[0], hint=foreign[1])
    check_models(deployment, plan)
    if published:
        _check_port(plan, runtime)


def check_models(deployment: Deployment, plan: Plan) -> None:
    """Check that the models are on disk, each with the files that the engine needs. Raises WeightsMissing."""
    settings = plan.settings
    target, drafter = deployment.path(settings.model_host_path), deployment.path(drafter_directory(settings))
    mounted = plan.runtime == "compose"
    remedy = plan.pair.target.remedy(str(target), Settings.model_host_path.name)
    check_weights(target, role="target", mounted=mounted, file=settings.model_file, remedy=remedy)
    if settings.mmproj_file:
        check_weights(target, role="vision projector", mounted=mounted, file=settings.mmproj_file, remedy=remedy)
    if plan.drafting:
        check_weights(
            drafter,
            role="drafter",
            mounted=mounted,
            file=settings.drafter_file,
            remedy=plan.pair.drafter.remedy(str(drafter), Settings.drafter_host_path.name),
        )


def _check_key(deployment: Deployment) -> None:
    """Check that the key is valid, reads the same for every reader of `.env`, and is private to the owner."""
    if not deployment.key_is_sound:
        raise SettingsRefused(
            f".env: {Settings.vllm_api_key} must have at least 16 characters: letters, digits, - and _",
            hint="generate a key: `dflash-deploy keys rotate`",
        )
    _ = deployment.further_keys
    if not deployment.is_private():
        raise PreflightRefused(
            f"{deployment.env_file} contains the API key and other users can read it",
            hint=f"run `chmod 600 {deployment.env_file}`",
        )


def _check_port(plan: Plan, runtime: Runtime) -> None:
    """Check that no other process listens on the port."""
    host, port = plan.settings.dflash_bind, plan.settings.dflash_port
    if not runtime.state().holds(host, port) and listener_on(host, port):
        raise PortTaken(
            f"port {port} on {host} is already in use",
            hint=f"set another {Settings.dflash_port} in .env, or find the process with `ss -ltnp`",
        )
