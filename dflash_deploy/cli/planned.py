"""Plans for the verbs: of an existing deployment, or of one that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.plan import Choice, Plan
    from dflash_deploy.project import Deployment


def plan_of(deployment: Deployment) -> Plan:
    """The plan of a deployment, its `.env` counting more than the catalog."""
    from dflash_deploy.plan import Choice

    return make_plan(Choice(edited=deployment.values))


def make_plan(choice: Choice) -> Plan:
    """A plan for this machine."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan import plan_deployment

    return plan_deployment(read_facts(), choice, load_catalog())
