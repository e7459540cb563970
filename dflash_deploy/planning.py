"""Plans for this machine: what the host has, what the catalog knows, what `.env` and the weights say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dflash_deploy.catalog.load import Catalog, load_catalog, packaged_catalog
from dflash_deploy.catalog.models import Family
from dflash_deploy.catalog.read import read_entry
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.deployment.upgrading import planned_before
from dflash_deploy.errors import DeployError, FileRefused, SettingsRefused
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.plan.command import in_home
from dflash_deploy.plan.result import RUNTIMES, Checkpoints, Choice, Plan
from dflash_deploy.rules.table import judge, plan_deployment
from dflash_deploy.runtime.select import runtime_seen
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.checkpoints import NO_HUB_METADATA, HubMetadata, read_checkpoints

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment

# Settings that say which processes belong to a deployment.
IDENTITY = (
    Settings.dflash_profile,
    Settings.dflash_pair,
    Settings.dflash_engine,
    Settings.dflash_bind,
    Settings.dflash_port,
    Settings.dflash_domain,
)

UNREAD = HostFacts("", 0, None, None, (), None, {})  # A machine that was not read


def plan_of(deployment: Deployment) -> Plan:
    """The plan of a deployment; `.env` overrides the catalog. Raises what `make_plan` raises."""
    return make_plan(Choice(edited=deployment.values), deployment)


def plan_with(deployment: Deployment, changes: Mapping[str, str]) -> Plan:
    """The plan of a deployment with some settings changed; `.env` does not change. Raises what `make_plan` raises."""
    return make_plan(Choice(edited={**deployment.values, **changes}), deployment)


def make_plan(
    choice: Choice,
    deployment: Deployment | None = None,
    facts: HostFacts | None = None,
    ahead: HubMetadata = NO_HUB_METADATA,
) -> Plan:
    """A plan for this machine, checked against every rule and against the weights on disk.

    `facts` are read here if they are not given. `ahead` is what the Hugging Face Hub says of weights that
    are not on disk yet. Raises UnknownProfile, UnknownPair, UnknownEngine, NotPossible and SettingsRefused.
    """
    facts, catalog = facts or read_facts(), catalog_for(deployment)
    if choice.family is not None:
        catalog = catalog.with_family(choice.family)
    plan = plan_deployment(facts, choice, catalog)
    # the first plan knows the directories of the weights; what they hold may change the engine
    place = deployment.path if deployment else lambda path: in_home(Path(path))
    found = read_checkpoints(plan.settings, place, ahead)
    return plan if found == Checkpoints() else plan_deployment(facts, choice, catalog, found)


def catalog_for(deployment: Deployment | None) -> Catalog:
    """The catalog with the entries of a deployment: its own model, and those it was planned with.

    Of the latter, entries of the catalog win, except over what an upgrade tries. Raises CatalogRefused.
    """
    catalog = load_catalog()
    kept = planned_before(deployment) if deployment else None
    if kept is not None and str(kept.release.get("name")) not in catalog.engines:
        # one that this program cannot read is missing, as without it
        with suppress(ValidationError):
            catalog = catalog.with_release(EngineRelease.model_validate(kept.release))
    if deployment and deployment.entry.is_file():
        catalog = catalog.with_family(read_entry(deployment.entry, Family))
    if kept is not None:
        with suppress(ValidationError):
            family = Family.model_validate(kept.family)
            if kept.before or family.targets[0].name not in catalog.pairs:
                catalog = catalog.with_family(family)
    return catalog


def with_configs(plan: Plan, target: Mapping[str, object] | None, drafter: Mapping[str, object] | None) -> Plan:
    """The plan, checked against these config.json in place of those on disk. Settings stay as they are."""
    known = plan.checkpoints
    read = replace(known, target=target or known.target, drafter=drafter or known.drafter)
    made = replace(plan, checkpoints=read)
    return replace(made, findings=tuple(judge(made, read_facts())))


def plan_to_stop(deployment: Deployment) -> Plan:
    """A plan that is enough to find a running engine, so that a mistake in `.env` does not keep it from being stopped.

    The machine is not read either: it may be what is broken.
    """
    runtime = Settings.dflash_runtime.name
    names = (field.name for field in IDENTITY)
    written = _readable(deployment)
    known = {runtime: written[runtime] if written.get(runtime) in RUNTIMES else runtime_seen(deployment)}
    try:
        catalog = catalog_for(deployment)
    except DeployError:
        catalog = packaged_catalog()
    try:
        identity = {name: written.get(name, "") for name in names}
        return plan_deployment(UNREAD, Choice(edited=identity | known), catalog)
    except DeployError:
        # the runtime is enough to find the engine
        return plan_deployment(UNREAD, Choice(profile="cpu", edited=known), catalog)


def plan_as_running(deployment: Deployment) -> Plan:
    """The plan of a deployment, with the runtime of the engine that runs if `.env` names none.

    Raises what `make_plan` raises.
    """
    values, name = deployment.values, Settings.dflash_runtime.name
    if not values.get(name):
        values = {**values, name: runtime_seen(deployment)}
    return make_plan(Choice(edited=values), deployment)


def _readable(deployment: Deployment) -> Mapping[str, str]:
    """The settings of `.env`; none if it is damaged."""
    try:
        return deployment.values
    except (SettingsRefused, FileRefused):
        return {}
