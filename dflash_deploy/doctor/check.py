"""A check of `doctor`: its input, its result, and the functions that all checks share.

The input is a machine, and a deployment on it or the plan for a new one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from dflash_deploy.catalog.models import Weights as Published
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import Documented, Seconds
from dflash_deploy.errors import DeployError, EngineMissing, WeightsMissing
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Secret
from dflash_deploy.runtime.protocol import EngineState, Runtime
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import check_weights
from dflash_deploy.weights.hub import HUB
from dflash_deploy.weights.lock import Role

Status = Literal["ok", "warning", "no", "skipped"]


@dataclass(frozen=True)
class Check(Documented):
    """One check of `doctor`."""

    name: str
    """Name of the check."""
    status: Status
    """`no`: `up` would fail. `warning`: `up` may fail, or the check cannot decide. `skipped`: nothing to check."""
    saw: str
    """What was found, with the values."""
    fix: str = ""
    """What to do if the status is not `ok`; empty if nothing is known."""
    seconds: Seconds = 0.0
    """Duration of the check in seconds."""


def gib(size: float) -> str:
    """Bytes as text in GiB, such as `1.5 GiB`."""
    return f"{size / GIB:.1f} GiB"


def at_least(seen: str, wanted: str) -> bool:
    """Whether version `seen` is `wanted` or newer. Build names after the numbers are ignored."""
    return _figures(seen) >= _figures(wanted)


def _figures(version: str) -> tuple[int, ...]:
    leading = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, leading[1].split("."))) if leading else ()


NO_TOKEN = Secret("")


@dataclass(frozen=True)
class LocalWeights:
    """One of the two models: its directory on this machine, and its size in bytes.

    `gated` means that the Hub requires an account that accepted the terms. `lack` is what is wrong with the directory,
    and `remedy` what to do; both are empty if it is complete.
    """

    role: str
    directory: Path
    size: int
    repo: str | None
    gated: bool
    lack: str
    remedy: str

    @property
    def there(self) -> bool:
        """Whether all of it is on disk."""
        return not self.lack


@dataclass(frozen=True)
class DoctorContext:
    """The input of the checks. `plan` is `None` if planning failed, and `refusal` says why.

    `deployment` and `runtime` are `None` without a deployment. `token` and `hub` are those that downloads would use.
    `probe` allows a check to start a container.
    """

    facts: HostFacts
    plan: Plan | None = None
    refusal: DeployError | None = None
    deployment: Deployment | None = None
    runtime: Runtime | None = None
    token: Secret = NO_TOKEN
    hub: str = HUB
    probe: bool = False

    @cached_property
    def engine_state(self) -> EngineState:
        """The state of the deployment's own engine, which may hold the port and the memory; absent if unknown."""
        if self.plan is not None and self.plan.runtime == "compose" and any(self.facts.no_docker):
            # a Docker that hangs is not asked again
            return EngineState("absent")
        try:
            return self.runtime.state() if self.runtime else EngineState("absent")
        except EngineMissing:
            return EngineState("absent")

    @cached_property
    def weights(self) -> tuple[LocalWeights, ...]:
        """Target and drafter; empty without a plan."""
        plan = self.plan
        if plan is None:
            return ()
        target = self._weights("target", Settings.model_host_path, plan, plan.pair.target)
        if not plan.drafting:
            return (target,)
        return target, self._weights("drafter", Settings.drafter_host_path, plan, plan.pair.drafter)

    def _weights(self, role: Role, field: Field[str], plan: Plan, model: Published) -> LocalWeights:
        path = plan.settings[field]
        directory = self.deployment.path(path) if self.deployment else Path(path).expanduser().absolute()
        lack, remedy = _lack(directory, role, plan, model.remedy(str(directory), field.name))
        return LocalWeights(role, directory, model.bytes, model.repo, model.gated, lack, remedy)


def _lack(directory: Path, role: Role, plan: Plan, remedy: str) -> tuple[str, str]:
    """What is wrong with a directory of weights, and what to do; both are empty if it is complete."""
    settings = plan.settings
    files: dict[str, str] = {role: settings.model_file if role == "target" else settings.drafter_file}
    if role == "target" and settings.mmproj_file:
        files["vision projector"] = settings.mmproj_file
    try:
        for part, file in files.items():
            check_weights(directory, role=part, remedy=remedy, mounted=plan.runtime == "compose", file=file)
    except WeightsMissing as missing:
        return missing.message, missing.hint
    return "", ""
