"""What there is to choose for a new deployment on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.recipes import Offered, faster, offered
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.host import HostFacts, listener_on, read_facts
from dflash_deploy.operations.planned import check_new
from dflash_deploy.plan import Choice, choose_profile
from dflash_deploy.plan.choose import possible_runtimes
from dflash_deploy.planning import make_plan

if TYPE_CHECKING:
    from dflash_deploy.catalog import Catalog
    from dflash_deploy.plan import Plan
    from dflash_deploy.serve.settings import RuntimeName

NEARBY = 100
"""Ports after the planned one that are tried."""


@dataclass(frozen=True)
class Offer:
    """The choices on a machine. `fitting` is the name of the profile that fits it; empty if none does."""

    facts: HostFacts
    catalog: Catalog
    fitting: str

    def plan(self, profile: str, recipe: str | None = None) -> Plan:
        """The plan with a profile. Raises UnknownProfile, NotPossible, UnknownPair, UnknownEngine, SettingsRefused."""
        return make_plan(Choice(profile=profile, recipe=recipe), facts=self.facts)

    def recipes(self, profile: str) -> tuple[Offered, ...]:
        """The recipes of a profile. Raises UnknownProfile."""
        return offered(self.catalog.profile(profile), self.catalog)

    def runtimes(self, plan: Plan) -> tuple[RuntimeName, ...]:
        """The runtimes that this machine has for the engine, the preferred one first."""
        return tuple(possible_runtimes(self.facts, plan.engine))

    def free_port(self, plan: Plan) -> int:
        """The planned port, or the next one that no program listens on."""
        planned, address = plan.settings.dflash_port, plan.settings.dflash_bind
        ports = range(planned, min(planned + NEARBY, 65536))
        return next((port for port in ports if not listener_on(address, port)), planned)


def offer(directory: Path, facts: HostFacts | None = None) -> Offer:
    """The choices for a new deployment in a directory. `facts` are read here if they are not given.

    Raises BadInput if the directory has a deployment already, CatalogRefused if the custom catalog is not valid.
    """
    check_new(Deployment(directory))
    facts, catalog = facts or read_facts(), load_catalog()
    try:
        return Offer(facts, catalog, choose_profile(facts, catalog).name)
    except UnknownProfile:
        return Offer(facts, catalog, "")


def faster_recipe(plan: Plan) -> tuple[Offered, Offered] | None:
    """The profile's default recipe and a faster one, if the plan is the default; else `None`."""
    found = faster(offered(plan.profile, load_catalog()))
    same = found and (plan.pair.name, plan.engine.name) == (found[0].pair.name, found[0].engine.name)
    return found if same else None
