"""Rules about who can reach the endpoint, and what it says."""

from __future__ import annotations

import ipaddress

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_BEHIND_A_PROXY = "set DFLASH_BIND=127.0.0.1 and put a reverse proxy in front"


def bind_is_no_address(plan: Plan, facts: HostFacts) -> Finding | None:
    """Docker publishes on addresses, and Compose's short syntax has no place for an IPv6 one."""
    host = plan.settings.dflash_bind
    if plan.runtime == "native" or plan.settings.several_machines or _is_ipv4(host):
        return None
    return Finding(
        "bind-is-no-address",
        "error",
        f"DFLASH_BIND={host} is no IPv4 address, and Docker publishes on those",
        "set DFLASH_BIND=127.0.0.1 for this machine alone",
        "Compose specification, ports",
        why="Compose would refuse the file",
    )


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def open_to_the_network(plan: Plan, facts: HostFacts) -> Finding | None:
    """Keys are seen on the way; and engines without our lock guard some routes with the key, and leave others open."""
    host = plan.settings.dflash_bind
    if host in LOOPBACK:
        return None
    opened = plan.engine.kind.open_routes
    if opened is None:
        return Finding(
            "open-to-the-network",
            "warning",
            f"the endpoint listens on {host}: keys, questions and answers go over the network unencrypted",
            f"{_BEHIND_A_PROXY} that speaks TLS",
            "RFC 6750, section 5.3",
            why="who sees a key on its way can use it",
        )
    return Finding(
        "open-to-the-network",
        "warning",
        f"the endpoint listens on {host}: whoever can reach it can use {opened.routes} without the key",
        f"{_BEHIND_A_PROXY} that lets only /v1 through",
        opened.source,
        why="an open route can be used, and filled with work, by everybody",
    )


def target_notice(plan: Plan, facts: HostFacts) -> Finding | None:
    """What the owner of the box must know about the target."""
    if not plan.pair.target.notice:
        return None
    return Finding("target-notice", "note", plan.pair.target.notice, "choose another model if that does not suit you")


RULES: tuple[Rule, ...] = (bind_is_no_address, open_to_the_network, target_notice)
