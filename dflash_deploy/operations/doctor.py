"""`doctor`: what would keep this machine from serving, found before it is tried."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor.check import NO_TOKEN, Check, DoctorContext
from dflash_deploy.doctor.table import run_checks
from dflash_deploy.document import Documented
from dflash_deploy.errors import DeployError, PreflightRefused
from dflash_deploy.host.gpu import VISIBLE
from dflash_deploy.host.machine import read_facts, with_named_slices
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import make_plan
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.hub import HUB


@dataclass(frozen=True)
class Examined(Documented):
    """What `doctor` found."""

    checks: tuple[Check, ...]
    """All checks, in the order in which they ran."""

    @property
    def failure(self) -> PreflightRefused | None:
        """The checks that say no, as an error; `None` if all passed."""
        refused = [check.name for check in self.checks if check.status == "no"]
        if not refused:
            return None
        return PreflightRefused(
            f"{len(refused)} of {len(self.checks)} checks failed: {', '.join(refused)}",
            hint="the fix is below each of them; then run `dflash-deploy doctor` again",
        )


def doctor(directory: Path, *, probe: bool = False) -> Examined:
    """Check this machine and the deployment in a directory, or the one that would be planned if there is none.

    `probe` starts a container to see whether it gets the GPUs.
    """
    return Examined(run_checks(_subject(directory, probe=probe)))


def _subject(directory: Path, *, probe: bool) -> DoctorContext:
    """The machine is read once. If no plan can be made, that is a finding, and the other checks run."""
    facts, hub, token = read_facts(), os.environ.get("HF_ENDPOINT") or HUB, NO_TOKEN
    deployment = Deployment(directory) if Deployment(directory).exists() else None
    try:
        if deployment is not None:
            deployment = Deployment.existing(directory)
            token = deployment.secrets[Settings.hf_token.name]
            hub = deployment.values.get("HF_ENDPOINT") or hub
        choice = Choice(edited=deployment.values) if deployment else Choice()
        facts = with_named_slices(facts, choice.edited.get(VISIBLE, ""))
        plan = make_plan(choice, deployment, facts)
    except DeployError as refusal:
        return DoctorContext(facts, refusal=refusal, deployment=deployment, token=token, hub=hub, probe=probe)
    runtime = runtime_for(deployment, plan) if deployment else None
    return DoctorContext(facts, plan, None, deployment, runtime, token, hub, probe)
