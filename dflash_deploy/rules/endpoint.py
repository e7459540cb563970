"""Rules about who can reach the endpoint, and about the target's terms."""

from __future__ import annotations

import ipaddress

from dflash_deploy.door import own_caddy, published_site
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule
from dflash_deploy.serve.settings import Settings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_ONLY_LOCAL = f"set {Settings.dflash_bind}={Settings.dflash_bind.default}"


def bind_is_no_address(plan: Plan, facts: HostFacts) -> Finding | None:
    """An address that Docker cannot publish on: Compose's short syntax has no IPv6 addresses and no names."""
    host = plan.settings.dflash_bind
    if plan.runtime == "native" or plan.settings.several_machines or _is_ipv4(host):
        return None
    return Finding(
        id="bind-is-no-address",
        severity="error",
        message=f"{Settings.dflash_bind}={host} is not an IPv4 address, which Docker publishes ports on",
        why="Compose refuses the file",
        fix=f"{_ONLY_LOCAL} to serve only this machine",
        source="Compose specification, ports",
    )


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def open_to_the_network(plan: Plan, facts: HostFacts) -> Finding | None:
    """An endpoint that other machines reach without TLS."""
    host = plan.settings.dflash_bind
    if host in LOOPBACK:
        return None
    published = plan.runtime != "native" and not plan.settings.several_machines
    past = "; `ufw` and firewalld do not filter a port that Docker publishes" if published else ""
    return Finding(
        id="open-to-the-network",
        severity="warning",
        message=f"the endpoint listens on {host}: keys, prompts and answers cross the network unencrypted",
        why=f"anyone who reads a key on its way can use it{past}",
        fix=f"{_ONLY_LOCAL} and set {Settings.dflash_domain}, or put a reverse proxy in front that speaks TLS",
        source="RFC 6750, section 5.3; Docker's documentation, Packet filtering and firewalls",
    )


def domain_needs_containers(plan: Plan, facts: HostFacts) -> Finding | None:
    """A domain without the network of Docker in which the door, a container with Caddy, reaches the engine."""
    settings, site = plan.settings, published_site(plan.settings)
    if site is None or not (plan.runtime == "native" or settings.several_machines):
        return None
    where = f"{Settings.dflash_runtime}=native" if plan.runtime == "native" else f"{Settings.nodes}={settings.nodes}"
    return Finding(
        id="domain-needs-containers",
        severity="error",
        message=f"{Settings.dflash_domain}={site.host} does not work with {where}",
        why="the door is a container, and reaches only an engine in its network of Docker",
        fix=f"leave {Settings.dflash_domain} empty, and serve the domain with an installed Caddy: "
        f"`{own_caddy(site, settings)}`",
    )


def traces_stay_in_the_container(plan: Plan, facts: HostFacts) -> Finding | None:
    """A receiver of traces at the loopback address, which in a container is the container's own."""
    receiver = plan.settings.otlp_traces_endpoint
    if receiver is None or plan.runtime == "native" or plan.settings.several_machines or receiver.host not in LOOPBACK:
        return None
    return Finding(
        id="traces-stay-in-the-container",
        severity="warning",
        message=f"{Settings.otlp_traces_endpoint}={receiver}: in a container {receiver.host} is the container itself",
        why="no trace reaches the receiver",
        fix="let the receiver listen on an address of this machine, such as that of docker0 (`ip addr show docker0`), "
        "and write that address",
        source="OpenTelemetry, OTLP exporter configuration",
    )


def target_notice(plan: Plan, facts: HostFacts) -> Finding | None:
    """What the catalog says that users of this target must know."""
    if not plan.pair.target.notice:
        return None
    return Finding(
        id="target-notice",
        severity="note",
        message=plan.pair.target.notice,
        fix="`dflash-deploy models list` shows other models",
    )


RULES: tuple[Rule, ...] = (
    bind_is_no_address,
    open_to_the_network,
    domain_needs_containers,
    traces_stay_in_the_container,
    target_notice,
)
