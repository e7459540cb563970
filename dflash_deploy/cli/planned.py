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


def plan_to_stop(deployment: Deployment) -> Plan:
    """A plan that is enough to find the engine again: a slip in `.env` must not keep anybody from stopping it.

    The machine is not looked at either, which may be what is broken.
    """
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import HostFacts
    from dflash_deploy.plan import Choice, plan_deployment

    identity = {name: deployment.values.get(name, "") for name in ("DFLASH_RUNTIME", "DFLASH_PROFILE", "DFLASH_PAIR")}
    unread = HostFacts("", 0, None, None, (), None, None)
    return plan_deployment(unread, Choice(edited=identity), load_catalog())


def make_plan(choice: Choice) -> Plan:
    """A plan for this machine."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan import plan_deployment

    return plan_deployment(read_facts(), choice, load_catalog())
