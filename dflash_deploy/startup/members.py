"""The URL that a deployment publishes under its domain, and the root certificate that clients must trust."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.deployment.compose import member_plans
from dflash_deploy.deployment.front import written_workers
from dflash_deploy.door.site import published_site
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.runtime.domain import root_of
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of, model_name, url_of

if TYPE_CHECKING:
    from dflash_deploy.client.endpoint import Endpoint
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import Runtime


@dataclass(frozen=True)
class Published:
    """What clients need beside the API key. `url` is without /v1; `root` is `None` if a public authority signs."""

    url: str
    root: Path | None

    @property
    def trusted(self) -> Path | None:
        """The root certificate, as soon as it exists."""
        return self.root if self.root is not None and self.root.is_file() else None


def published_of(deployment: Deployment, plan: Plan) -> Published | None:
    """What a deployment publishes under its domain; `None` without one. Raises SettingsRefused."""
    site = published_site(plan.settings)
    if site is None or deployment.member is not None:
        return None
    return Published(site.url, root_of(deployment, plan.settings))


def whole_url(deployment: Deployment, plan: Plan) -> str:
    """The URL of a deployment as its clients know it, without /v1. Raises SettingsRefused."""
    published = published_of(deployment, plan)
    return url_of(deployment, plan) if published is None else published.url


PROOF = 60.0
"""Seconds for one short answer of an engine on another machine."""

SCHEME = "http://"


def is_foreign(worker: RoutedEngine) -> bool:
    """Whether an engine of the router's list runs on another machine: its id is HOST:PORT, and no number."""
    return not worker.id.isdecimal()


def foreign_of(plan: Plan) -> tuple[RoutedEngine, ...]:
    """The engines on other machines that the settings name."""
    models = plan.settings.served_model_name
    return tuple(RoutedEngine(address, f"{SCHEME}{address}", models) for address in plan.settings.router_engines)


def foreign_endpoint(deployment: Deployment, plan: Plan, worker: RoutedEngine, *, timeout: float) -> Endpoint:
    """The endpoint of an engine on another machine; it has the API key of this deployment. `timeout` is in seconds."""
    from dflash_deploy.client.endpoint import Endpoint  # noqa: PLC0415 - as in `endpoint_of`

    return Endpoint(worker.url, deployment.key, model_name(plan), timeout=timeout)


def foreign_endpoints(deployment: Deployment, plan: Plan, *, timeout: float) -> Iterator[Endpoint]:
    """The endpoints of the engines on other machines that get requests."""
    for worker in written_workers(deployment):
        if is_foreign(worker):
            yield foreign_endpoint(deployment, plan, worker, timeout=timeout)


def sorted_out(
    listed: Iterable[RoutedEngine], wanted: Iterable[RoutedEngine], without: Iterable[str] = ()
) -> tuple[tuple[RoutedEngine, ...], tuple[RoutedEngine, ...]]:
    """Which engines of other machines keep their place in the router's list, and which must prove themselves first.

    `without` are the ids of those that shall get no requests. What is not wanted, or has another model, is in neither.
    """
    there, left_out = set(listed), set(without)
    asked = [worker for worker in wanted if worker.id not in left_out]
    return tuple(one for one in asked if one in there), tuple(one for one in asked if one not in there)


def proven(
    deployment: Deployment, plan: Plan, listed: Iterable[RoutedEngine], without: Iterable[str] = ()
) -> tuple[tuple[RoutedEngine, ...], Mapping[str, str]]:
    """The engines of other machines that shall get requests; and by id, why one does not.

    One that gets requests already keeps them: the router itself leaves it out while it does not answer.
    """
    kept, new = sorted_out(listed, foreign_of(plan), without)
    reasons = {worker.id: _problem_of(deployment, plan, worker) for worker in new}
    return (*kept, *(worker for worker in new if not reasons[worker.id])), {
        id_: why for id_, why in reasons.items() if why
    }


def _problem_of(deployment: Deployment, plan: Plan, worker: RoutedEngine) -> str:
    """Ask an engine for one short answer; return why there is none, empty if there is."""
    # as in `foreign_endpoint`
    from dflash_deploy.client.answers import EndpointError  # noqa: PLC0415

    with foreign_endpoint(deployment, plan, worker, timeout=PROOF) as endpoint:
        try:
            endpoint.chat(plan.pair.text.ask, max_tokens=16)
        except EndpointError as problem:
            return str(problem)
    return ""


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
    from dflash_deploy.client.endpoint import SharedEndpoint  # noqa: PLC0415

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
