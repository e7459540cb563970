"""What Prometheus reads for a deployment, and the limits of its alerts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from dflash_deploy.deployment import Deployment
from dflash_deploy.door import ROUTER_METRICS_PATH, metrics_path
from dflash_deploy.errors import BadInput
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.invalid import Invalid
from dflash_deploy.monitoring.limits import MonitoringLimits, limits
from dflash_deploy.monitoring.prometheus import ScrapeTargets
from dflash_deploy.operations.receiving import MOST_PORT
from dflash_deploy.plan import Plan
from dflash_deploy.plan.replicas import LOOPBACK, router_metrics_port
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.serve.gateway.scopes import LIVENESS
from dflash_deploy.startup.known import url_of
from dflash_deploy.startup.members import METRICS_TIMEOUT, engine_endpoints
from dflash_deploy.startup.published import published_of, whole_url

_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


@dataclass(frozen=True)
class Exporters:
    """Exporters beside a deployment, as HOST:PORT: node exporters, DCGM exporters, and a blackbox exporter."""

    nodes: Sequence[str] = ()
    gpus: Sequence[str] = ()
    blackbox: str = ""

    def checked(self) -> Exporters:
        """The same. Raises BadInput for an address that is not valid."""
        for address in filter(None, (*self.nodes, *self.gpus, self.blackbox)):
            if not _ADDRESS.fullmatch(address) or not 1 <= int(address.rpartition(":")[2]) <= MOST_PORT:
                raise BadInput(f"`{address}` is not a valid address: expected HOST:PORT", hint="such as 127.0.0.1:9100")
        return self


NO_EXPORTERS = Exporters()


def scraped(deployment: Deployment, plan: Plan, exporters: Exporters = NO_EXPORTERS) -> ScrapeTargets:
    """What Prometheus reads: the engines of a deployment, its router, and exporters."""
    return ScrapeTargets(
        deployment.project_name,
        tuple(_addresses(deployment, plan)),
        exporters.nodes,
        exporters.gpus,
        _router(deployment, plan) if plan.settings.several_engines else "",
        exporters.blackbox,
        f"{whole_url(deployment, plan)}{LIVENESS}" if exporters.blackbox else "",
    )


def note_older_door(targets: ScrapeTargets, note: Callable[[str], None]) -> None:
    """Say it if the door that runs is of an earlier version, which does not publish the metrics of its engines."""
    # earlier versions published no router, and those before them no engine
    place = targets.router or next(iter(targets.engines), "")
    if "/" not in place:
        return
    # any key: without one the door answers 401 on every path
    with new_client(trust_env=False, headers={"Authorization": "Bearer none"}, timeout=METRICS_TIMEOUT) as client:
        try:
            answer = fetch_answer(client, client.build_request("GET", f"http://{place}"), seconds=METRICS_TIMEOUT)
        except (httpx.HTTPError, Invalid):
            # it does not run
            return
    if answer.status == httpx.codes.NOT_FOUND:
        note(f"the door does not publish http://{place}: it is of an earlier version; run `dflash-deploy up`")


def limits_of(deployment: Deployment, plan: Plan) -> MonitoringLimits:
    """When the alerts of a deployment fire."""
    published = published_of(deployment, plan)
    return limits(
        sequences=plan.settings.max_num_seqs or USUAL_SEQUENCES,
        speculating=plan.speculating,
        unified=plan.profile.hardware.unified,
        private_authority=published is not None and published.root is not None,
    )


def _router(deployment: Deployment, plan: Plan) -> str:
    """The metrics of the router: in a container at a path of the door, with a key."""
    if plan.runtime == "compose":
        return f"{_door(deployment, plan)}{ROUTER_METRICS_PATH}"
    return f"{LOOPBACK}:{router_metrics_port(plan.settings.dflash_port)}"


def _door(deployment: Deployment, plan: Plan) -> str:
    return url_of(deployment, plan).removeprefix("http://")


def _addresses(deployment: Deployment, plan: Plan) -> Iterator[str]:
    """The address of each engine: a router before several of them has no metrics of an engine.

    Of several in containers it is a path of their door: a container that restarts may get another address.
    """
    if plan.settings.several_engines and plan.runtime == "compose":
        door = _door(deployment, plan)
        yield from (f"{door}{metrics_path(number)}" for number in range(1, plan.settings.replicas + 1))
        return
    for endpoint in engine_endpoints(deployment, plan, timeout=METRICS_TIMEOUT):
        with endpoint:
            yield endpoint.url.removeprefix("http://")
