"""What Prometheus reads for a deployment, and the limits of its alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.monitoring.limits import MonitoringLimits, limits
from dflash_deploy.monitoring.prometheus import ScrapeTargets
from dflash_deploy.plan import Plan
from dflash_deploy.plan.replicas import LOOPBACK, router_metrics_port
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.serve.gateway.scopes import LIVENESS
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
            if not _ADDRESS.fullmatch(address):
                raise BadInput(f"`{address}` is not a valid address: expected HOST:PORT", hint="such as 127.0.0.1:9100")
        return self


NO_EXPORTERS = Exporters()


def scraped(deployment: Deployment, plan: Plan, exporters: Exporters = NO_EXPORTERS) -> ScrapeTargets:
    """What Prometheus reads: the engines of a deployment, its router, and exporters. Raises NotPossible."""
    several = plan.settings.several_engines
    return ScrapeTargets(
        deployment.project_name,
        tuple(_addresses(deployment, plan)),
        exporters.nodes,
        exporters.gpus,
        f"{LOOPBACK}:{router_metrics_port(plan.settings.dflash_port)}" if several else "",
        exporters.blackbox,
        f"{whole_url(deployment, plan)}{LIVENESS}" if exporters.blackbox else "",
    )


def limits_of(deployment: Deployment, plan: Plan) -> MonitoringLimits:
    """When the alerts of a deployment fire."""
    published = published_of(deployment, plan)
    return limits(
        sequences=plan.settings.max_num_seqs or USUAL_SEQUENCES,
        speculating=plan.speculating,
        unified=plan.profile.hardware.unified,
        private_authority=published is not None and published.root is not None,
    )


def _addresses(deployment: Deployment, plan: Plan) -> Iterator[str]:
    """The address of each engine: a router before several of them has no metrics of an engine. Raises NotPossible."""
    if plan.settings.several_engines and plan.runtime == "compose":
        raise NotPossible(
            "several engines in containers have no address that stays: a restarted container may get another one",
            hint="read them with `dflash-deploy status`, or run them with `init --runtime native`",
        )
    for endpoint in engine_endpoints(deployment, plan, timeout=METRICS_TIMEOUT):
        with endpoint:
            yield endpoint.url.removeprefix("http://")
