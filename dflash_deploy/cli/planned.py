"""Plans for the verbs: of an existing deployment, or of one that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dflash_deploy.errors import DeployError

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.host import HostFacts
    from dflash_deploy.plan import Choice, Plan
    from dflash_deploy.weights.checkpoints import HubMetadata

Profile = Annotated[str | None, typer.Option(help="Hardware profile; recognised where left out.")]
Model = Annotated[
    str | None,
    typer.Option("--model", "--pair", help="Model pair, or its target's repository; else the profile's own."),
]
Engine = Annotated[str | None, typer.Option(help="vllm, sglang, llamacpp, or one release of the catalog.")]
Goal = Annotated[
    Literal["latency", "throughput", "context"] | None, typer.Option(help="What the sizes are chosen for.")
]
Length = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Longest sequence, prompt and answer together, in tokens.")
]
Streams = Annotated[int | None, typer.Option(min=1, max=100_000, help="Streams that are answered at the same time.")]
NoDrafter = Annotated[bool, typer.Option("--no-drafter", help="Plain decoding, to compare with.")]
Rank = Annotated[int | None, typer.Option(min=0, help="This machine's rank among several; 0 answers requests.")]
Master = Annotated[str | None, typer.Option(help="Address of rank 0 on the link between the machines.")]
Patience = Annotated[
    float, typer.Option(min=1, help="Seconds without a sign of progress after which the engine is given up.")
]
RUNTIMES = ("compose", "native")
Runtime = Annotated[Literal["compose", "native"] | None, typer.Option(help="Containers, or a process of this machine.")]


def plan_of(deployment: Deployment, ahead: HubMetadata | None = None) -> Plan:
    """The plan of a deployment, its `.env` counting more than the catalog."""
    from dflash_deploy.plan import Choice

    return make_plan(Choice(edited=deployment.values), deployment, ahead=ahead)


def plan_to_stop(deployment: Deployment) -> Plan:
    """A plan that is enough to find the engine again: a slip in `.env` must not keep anybody from stopping it.

    The machine is not looked at either, which may be what is broken.
    """
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import HostFacts
    from dflash_deploy.plan import Choice
    from dflash_deploy.rules import plan_deployment

    names = ("DFLASH_RUNTIME", "DFLASH_PROFILE", "DFLASH_PAIR", "DFLASH_ENGINE")
    identity = {name: deployment.values.get(name, "") for name in names}
    unread, catalog = HostFacts("", 0, None, None, (), None, None), load_catalog()
    try:
        return plan_deployment(unread, Choice(edited=identity), catalog)
    except DeployError:
        # what runs is found by the runtime alone
        known = {name: value for name, value in identity.items() if name == "DFLASH_RUNTIME" and value in RUNTIMES}
        return plan_deployment(unread, Choice(profile="cpu", edited=known), catalog)


def refusal_of(plan: Plan) -> list[str]:
    """A line that says that a plan is not one to start, where that is so."""
    count = len(plan.errors)
    said = "an error" if count == 1 else f"{count} errors"
    return [f"refused  `dflash-deploy up` will not start this: {said} below"] if count else []


def make_plan(
    choice: Choice,
    deployment: Deployment | None = None,
    facts: HostFacts | None = None,
    ahead: HubMetadata | None = None,
) -> Plan:
    """A plan for this machine (read here, where `facts` does not say it), held against its weights.

    `ahead` is what the hub says of weights that are still to come.
    """
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan import Checkpoints
    from dflash_deploy.plan.command import in_home
    from dflash_deploy.rules import plan_deployment
    from dflash_deploy.weights import read_checkpoints
    from dflash_deploy.weights.checkpoints import NO_HUB_METADATA

    facts, catalog = facts or read_facts(), load_catalog()
    plan = plan_deployment(facts, choice, catalog)
    # where the weights lie is known from the first plan; what they say may change the engine
    place = deployment.path if deployment else lambda path: in_home(Path(path))
    found = read_checkpoints(plan.settings, place, ahead or NO_HUB_METADATA)
    return plan if found == Checkpoints() else plan_deployment(facts, choice, catalog, found)
