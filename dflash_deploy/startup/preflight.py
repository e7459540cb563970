"""What can be known to go wrong before anything is started, the cheapest look first and the port last."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import PortTaken, PreflightRefused, SettingsRefused
from dflash_deploy.host import is_address_here, listener_on
from dflash_deploy.plan import Plan
from dflash_deploy.plan.command import answers_requests, drafter_host_path, engine_command
from dflash_deploy.runtime import Runtime
from dflash_deploy.weights import check_weights


def preflight(
    deployment: Deployment, plan: Plan, runtime: Runtime, *, new_key: bool = False, joining: bool = False
) -> None:
    """All that can be known to go wrong before starting; raises the first PreflightRefused or SettingsRefused.

    `new_key`: the key is about to be replaced, so the present one may be anything. `joining`: no answer is expected.
    """
    engine_command(plan)
    if not joining and not answers_requests(plan.values):
        said = f"this machine is rank {plan.values['NODE_RANK']}, which answers nobody"
        raise PreflightRefused(said, hint="`dflash-deploy up` starts it")
    if not new_key:
        _check_key(deployment)
    for finding in plan.errors:
        raise PreflightRefused(finding.message, hint=finding.fix)
    runtime.preflight()
    _check_weights(deployment, plan)
    if answers_requests(plan.values):
        _check_port(plan, runtime)


def _check_weights(deployment: Deployment, plan: Plan) -> None:
    """Target and drafter are there, each with the files that its engine needs."""
    target, drafter = deployment.path(plan.values["MODEL_HOST_PATH"]), deployment.path(drafter_host_path(plan.values))
    mounted = plan.runtime == "compose"
    check_weights(
        target,
        role="target",
        setting="MODEL_HOST_PATH",
        mounted=mounted,
        file=plan.values.get("MODEL_FILE", ""),
        fetch=plan.pair.target.download(str(target)),
    )
    if plan.drafting:
        check_weights(
            drafter,
            role="drafter",
            setting="DRAFTER_HOST_PATH",
            mounted=mounted,
            file=plan.values.get("DRAFTER_FILE", ""),
            fetch=plan.pair.drafter.download(str(drafter)),
        )


def _check_key(deployment: Deployment) -> None:
    """The key is there, every reader of `.env` finds the same one, and nobody else can read it."""
    if not deployment.key_is_sound:
        raise SettingsRefused(
            ".env: VLLM_API_KEY and each of DFLASH_API_KEYS must have 16 characters or more: letters, digits, - and _",
            hint="make one: dflash-deploy keys rotate",
        )
    if not deployment.is_private():
        raise PreflightRefused(
            f"{deployment.env_file} holds the key and can be read by others", hint=f"chmod 600 {deployment.env_file}"
        )


def _check_port(plan: Plan, runtime: Runtime) -> None:
    """The address is one of this machine, and nobody else listens there. The last look: all else was in order."""
    host, port = plan.values["DFLASH_BIND"], int(plan.values["DFLASH_PORT"])
    if not is_address_here(host):
        raise PreflightRefused(
            f"DFLASH_BIND={host} is no address of this machine", hint="`ip addr` lists those that it has"
        )
    state = runtime.state()
    ours = state.alive and state.address == f"{host}:{port}"
    if not ours and listener_on(host, port):
        raise PortTaken(
            f"something else already listens on {host}:{port}",
            hint="set another DFLASH_PORT in .env, or see who it is: `ss -ltnp`",
        )
