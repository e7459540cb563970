"""The engines of a deployment that has several: each with its own plan, state and process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_deploy.deployment.services import member_plans
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.runtime import runtime_for
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.foreign import foreign_endpoints
from dflash_deploy.startup.known import endpoint_of
from dflash_deploy.startup.published import published_of

if TYPE_CHECKING:
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime


METRICS_TIMEOUT = 30.0
"""Seconds for the counters of one engine."""


@dataclass(frozen=True)
class Member:
    """One of several engines, counted from 1. Everything that works on a deployment works on it."""

    number: int
    deployment: Deployment
    plan: Plan

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"engine {self.number}"

    @property
    def runtime(self) -> Runtime:
        """What starts and stops it."""
        return runtime_for(self.deployment, self.plan)

    @property
    def worker(self) -> RoutedEngine:
        """Its entry in the router's list."""
        settings = self.plan.settings
        return RoutedEngine(str(self.number), self.runtime.private_url, settings.served_model_name)


def members_of(deployment: Deployment, plan: Plan) -> tuple[Member, ...]:
    """The engines of a deployment; empty if it has only one."""
    plans = enumerate(member_plans(plan), start=1)
    return tuple(Member(number, deployment.replica(number), one) for number, one in plans)


def chosen_member(deployment: Deployment, plan: Plan, number: int) -> Member:
    """One engine by its number. Raises BadInput if the deployment has no engine of that number."""
    members = members_of(deployment, plan)
    if not members:
        raise BadInput(
            f"--replica {number}: this deployment has one engine",
            hint=f"leave it out, or set {Settings.replicas} in .env",
        )
    if number > len(members):
        raise BadInput(f"--replica {number}: there are {len(members)} engines", hint=f"choose 1 to {len(members)}")
    return members[number - 1]


def seen_as(deployment: Deployment, plan: Plan, number: int | None) -> tuple[Deployment, Plan]:
    """The deployment and plan of one engine; those of the whole without a number. Raises BadInput."""
    if number is None:
        return deployment, plan
    member = chosen_member(deployment, plan, number)
    return member.deployment, member.plan


def engine_endpoints(deployment: Deployment, plan: Plan, *, timeout: float) -> Iterator[Endpoint]:
    """The endpoint of each engine; the deployment's own if it has one engine. `timeout` is in seconds."""
    members = members_of(deployment, plan)
    places = [(member.deployment, member.plan) for member in members] or [(deployment, plan)]
    for place, one in places:
        yield endpoint_of(place, one, timeout=timeout)


def whole_endpoint(deployment: Deployment, plan: Plan) -> Endpoint:
    """The endpoint that a deployment publishes, with the counters of all its engines."""
    # as in `endpoint_of`: `down` and `logs` ask no endpoint
    from dflash_deploy.client.several import SharedEndpoint  # noqa: PLC0415

    front, published = endpoint_of(deployment, plan), published_of(deployment, plan)
    if not plan.settings.several_engines and published is None:
        return front
    front.close()
    engines = [
        *engine_endpoints(deployment, plan, timeout=METRICS_TIMEOUT),
        *foreign_endpoints(deployment, plan, timeout=METRICS_TIMEOUT),
    ]
    url, root = (front.url, None) if published is None else (published.url, published.trusted)
    return SharedEndpoint(url, deployment.key, front.model, engines, root=root)


def refuse_several(plan: Plan, what: str) -> None:
    """Raise NotPossible if there are several engines and none is chosen. `what` restarts one with other settings."""
    if plan.settings.several_engines:
        raise NotPossible(
            f"{what} restarts the engine with other settings, and a router shares requests out to several "
            f"({plan.settings.routed_by})",
            hint="choose one, and the others keep answering: --replica 1",
        )
