"""Engines on other machines behind the router of this one: each is started and stopped on its own machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.startup.known import model_name

if TYPE_CHECKING:
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan

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
    from dflash_deploy.client import Endpoint  # noqa: PLC0415 - as in `endpoint_of`

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
    from dflash_deploy.client import EndpointError  # noqa: PLC0415

    with foreign_endpoint(deployment, plan, worker, timeout=PROOF) as endpoint:
        try:
            endpoint.chat(plan.pair.text.ask, max_tokens=16)
        except EndpointError as problem:
            return str(problem)
    return ""
