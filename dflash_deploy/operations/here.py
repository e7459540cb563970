"""`dflash-deploy` without a command: what a directory and this machine are, and the next command. `list`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment, deployments_at_home, unapplied
from dflash_deploy.document import Documented
from dflash_deploy.errors import DeployError, UnknownProfile, WeightsMissing
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.plan.choose import choose_profile
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import make_plan
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.start import check_models

if TYPE_CHECKING:
    from dflash_deploy.catalog.hardware import Profile
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import Phase


@dataclass(frozen=True)
class FoundDeployment:
    """A deployment that can be read. `weights_problem` and `unapplied` say what is wrong; empty if nothing is."""

    plan: Plan
    phase: Phase
    weights_problem: str
    unapplied: str = ""


@dataclass(frozen=True)
class Look:
    """A directory and the machine. `deployed` is what is in the directory: nothing, a deployment, or an error.

    `fitting` is the profile for the machine, or the error that says why there is none.
    """

    directory: Path
    facts: HostFacts
    fitting: Profile | DeployError
    deployed: FoundDeployment | DeployError | None

    @property
    def next_command(self) -> str:
        """The arguments of the command to run next."""
        if self.deployed is None:
            return "init" if not isinstance(self.fitting, DeployError) else "profiles"
        if isinstance(self.deployed, DeployError):
            return "doctor"
        if self.deployed.phase == "running":
            return "up" if self.deployed.unapplied else "status"
        if self.deployed.phase in {"restarting", "paused"}:
            return "logs"
        return "pull" if self.deployed.weights_problem else "up"


def look(directory: Path, facts: HostFacts | None = None) -> Look:
    """What a directory and this machine are. `facts` are read here if they are not given. Changes nothing.

    Raises CatalogRefused if the custom catalog is not valid.
    """
    facts = facts or read_facts()
    return Look(directory.absolute(), facts, _fitting(facts), _deployed(directory, facts))


@dataclass(frozen=True)
class ListedDeployment(Documented):
    """A deployment of this user."""

    name: str
    """Name of its directory, as `--dir` takes it."""
    directory: Path
    """Its directory."""
    model: str
    """The catalog's name of the model; empty if the settings cannot be read."""
    engine: str
    """What its engine does, such as `running`, `exited` or `absent`; `unknown` if it cannot be found out."""


@dataclass(frozen=True)
class Deployments(Documented):
    """The deployment of the current directory, and those below `~/dflash`."""

    deployments: Sequence[ListedDeployment]
    """The deployments; the one that was used last is the first of those below `~/dflash`."""


def deployments(here: Path) -> Deployments:
    """The deployment in `here`, if there is one, and those below `~/dflash`. Changes nothing."""
    deployment = Deployment(here)
    own = [here.absolute()] if deployment.env_file.exists() and deployment.foreign_file is None else []
    places, facts = dict.fromkeys([*own, *deployments_at_home()]), read_facts()
    return Deployments([_listed(place, _deployed(place, facts)) for place in places])


def _listed(place: Path, found: FoundDeployment | DeployError | None) -> ListedDeployment:
    if isinstance(found, FoundDeployment):
        return ListedDeployment(place.name, place, found.plan.pair.name, found.phase)
    model = ""
    with suppress(DeployError):
        model = Deployment(place).values.get(Settings.dflash_pair.name, "")
    return ListedDeployment(place.name, place, model, "unknown")


def _fitting(facts: HostFacts) -> Profile | DeployError:
    try:
        return choose_profile(facts, load_catalog())
    except UnknownProfile as problem:
        return problem


def _deployed(directory: Path, facts: HostFacts) -> FoundDeployment | DeployError | None:
    if not Deployment(directory).exists():
        return None
    try:
        deployment = Deployment.existing(directory)
        plan = make_plan(Choice(edited=deployment.values), deployment, facts)
        phase = runtime_for(deployment, plan).state().phase
    except DeployError as problem:
        return problem
    try:
        check_models(deployment, plan)
    except WeightsMissing as missing:
        return FoundDeployment(plan, phase, missing.message)
    return FoundDeployment(plan, phase, "", unapplied(deployment) if phase == "running" else "")
