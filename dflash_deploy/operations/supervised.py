"""What starts `run` on its own: a unit of systemd, or a configuration of llama-swap for several deployments."""

from __future__ import annotations

import getpass
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join

import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import model_name, url_of

ENDS = 120
"""Seconds that requests in progress, the engine and its processes have to end."""

UNIT = """\
# /etc/systemd/system/{name}.service, then: systemctl daemon-reload && systemctl enable --now {name}
[Unit]
Description=dflash-deploy {directory}
Wants=network-online.target{docker}
After=network-online.target{docker}

[Service]
User={user}
ExecStart={command}
# SIGTERM goes to the command, which waits for requests in progress
KillMode=mixed
TimeoutStopSec={stop}
Restart=on-failure
RestartSec=30
# settings that cannot work do not get better by themselves
RestartPreventExitStatus=2 3

[Install]
WantedBy=multi-user.target
"""
"""systemd.service(5), systemd.kill(5)."""


def systemd_unit(directory: Path) -> str:
    """The text of a unit that runs a deployment from the machine's start on. Raises NoDeployment, SettingsRefused."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    words = (_unit_word(word) for word in _command(deployment))
    return UNIT.format(
        name=f"dflash-{deployment.directory.absolute().name}",
        directory=str(deployment.directory.absolute()).replace("%", "%%"),
        docker=" docker.service" if plan.runtime == "compose" else "",
        user=getpass.getuser(),
        command=" ".join(words),
        stop=ENDS,
    )


def _unit_word(word: str) -> str:
    """A word of ExecStart: quoted, without specifiers and variables."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{word}"'


def _command(deployment: Deployment) -> tuple[str, ...]:
    """The command that runs a deployment, wherever it is called from."""
    found = shutil.which("dflash-deploy")
    program = (found,) if found else (sys.executable, "-m", "dflash_deploy")
    return (*program, "run", "--dir", str(deployment.directory.absolute()))


def llama_swap(directories: Sequence[Path]) -> str:
    """A configuration of llama-swap (config.example.yaml, 2026-11) for deployments that take turns at one address.

    A request's `model` chooses. The key is read from llama-swap's environment; it passes that of clients on. Raises
    NoDeployment, SettingsRefused; BadInput if two deployments share a port or a name, or have different keys.
    """
    found = [Deployment.existing(directory) for directory in directories]
    plans = [plan_of(deployment) for deployment in found]
    _refuse_shared("port", Settings.dflash_port.name, [str(plan.settings.dflash_port) for plan in plans])
    _refuse_shared("name", Settings.served_model_name.name, [model_name(plan) for plan in plans])
    if len({deployment.key.reveal() for deployment in found}) > 1:
        raise BadInput(
            "the deployments have different API keys, and clients of llama-swap send one",
            hint=f"copy the line {Settings.vllm_api_key} from one .env into the others",
        )
    models = {model_name(plan): _swapped(deployment, plan) for deployment, plan in zip(found, plans, strict=True)}
    key = f"${{env.{Settings.vllm_api_key}}}"
    whole = {"healthCheckTimeout": int(PATIENCE), "apiKeys": [key], "models": models}
    return yaml.safe_dump(whole, sort_keys=False, width=1000)


def _swapped(deployment: Deployment, plan: Plan) -> Mapping[str, object]:
    idle = plan.settings.idle_minutes
    return {
        "cmd": join(_command(deployment)),
        "proxy": url_of(plan),
        "checkEndpoint": LIVENESS,
        # of a sleeping engine the door would stay, and others could not tell
        "ttl": 0 if idle is None else int(60 * idle),
        "unloadTimeout": ENDS,
        "aliases": list(plan.settings.served_model_name[1:]),
    }


def _refuse_shared(what: str, setting: str, values: Sequence[str]) -> None:
    shared = {value for value in values if values.count(value) > 1}
    if shared:
        raise BadInput(
            f"two deployments have the {what} {min(shared)}",
            hint=f"`dflash-deploy set {setting}=… --dir DIRECTORY` changes it",
        )
