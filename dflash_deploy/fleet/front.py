"""The router in front of all hosts: which host runs it, and what the engines of the others listen on; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dflash_deploy.errors import FleetRefused
from dflash_deploy.fleet.file import FILE, Fleet, FleetHost
from dflash_deploy.fleet.shape import Chosen, own_settings
from dflash_deploy.serve.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
ROUTER = "router"
"""What installs the router and the door for the native runtime: an extra of dflash-deploy."""


def has_front(fleet: Fleet, chosen: Chosen) -> bool:
    """Whether one host runs a router and a door for the engines of all."""
    return fleet.router and chosen.shape == "replicas" and len(fleet.hosts) > 1


def check_front(fleet: Fleet, replicas: int, *, native: bool) -> None:
    """Raise FleetRefused if the router would not be installed, or a host would have several engines and a router.

    `replicas` is REPLICAS of `.env`; `native`: its runtime is not Docker.
    """
    or_none = f"write `router: off` in {FILE}: then each host has an endpoint of its own"
    if native and not fleet.leader.program and ROUTER not in fleet.install.extras:
        extras = ", ".join((*fleet.install.extras, ROUTER))
        raise FleetRefused(
            f"{FILE}: the router in front of all hosts would not be installed on {fleet.leader.name}",
            hint=f"write `extras: [{extras}]` under `install`, or {or_none}",
        )
    for host in fleet.hosts:
        written = own_settings(fleet, host).get(Settings.replicas.name, str(replicas))
        if written not in {"", "1"}:
            raise FleetRefused(
                f"{host.name}: {Settings.replicas}={written}: the router in front of all needs one engine on each",
                hint=f"set {Settings.replicas}=1, or {or_none}",
            )


@dataclass(frozen=True)
class Front:
    """The router and the door of a fleet: on which host, and the HOST:PORT of the engines of the others by host.

    `unknown` are those of hosts that do not answer now.
    """

    host: FleetHost
    engines: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    def with_unknown(self, before: Iterable[str]) -> Front:
        """The same with addresses that the router had before, and that may be those of hosts that do not answer."""
        return replace(self, unknown=tuple(one for one in before if one not in self.engines.values()))

    def settings(self, host: FleetHost) -> dict[str, str]:
        """The settings with which a host is behind the router, or runs it. What `fleet.yaml` has for this host wins."""
        if host is self.host:
            return {Settings.router_engines.name: ",".join((*self.engines.values(), *self.unknown))}
        if host.name not in self.engines:
            return {}
        address = self.engines[host.name].rpartition(":")[0]
        forced = {Settings.dflash_bind.name: address, Settings.dflash_domain.name: ""}
        return {name: value for name, value in forced.items() if name not in host.settings}


def front_of(fleet: Fleet, addresses: Mapping[str, str], port: int) -> Front:
    """Return the router's place and the engines behind it. `addresses` has those of hosts on their link.

    A host without an address is left out. `port` is that of `.env`. Raises FleetRefused for a host whose own settings
    keep the router from its engine, and for a public address that nothing asks for: the link is not encrypted.
    """
    engines: dict[str, str] = {}
    for host in fleet.hosts:
        if host is fleet.leader or host.name not in addresses:
            continue
        own = own_settings(fleet, host)
        asked = str(host.settings.get(Settings.dflash_bind.name, ""))
        bind = asked or addresses[host.name]
        if not asked and ipaddress.ip_address(bind).is_global:
            raise FleetRefused(
                f"{host.name}: its engine would listen on the public address {bind}, without encryption",
                hint=f"name a private link as `fabric` of each host in {FILE}, or write `router: off`; "
                f"{Settings.dflash_bind} in `settings` of this host allows it",
            )
        if bind in _LOOPBACK:
            raise FleetRefused(
                f"{host.name}: {Settings.dflash_bind}={bind}: {fleet.leader.name}, with the router, cannot reach it",
                hint=f"remove {Settings.dflash_bind} from `settings` of this host: `fleet up` sets its address",
            )
        number = own.get(Settings.dflash_port.name, str(port))
        engines[host.name] = f"{addresses[host.name] if bind in _ANY else bind}:{number}"
    return Front(fleet.leader, engines)


def kept_addresses(
    addresses: Mapping[str, str], own: Mapping[str, Collection[str]], listed: Iterable[str]
) -> dict[str, str]:
    """The addresses by host, each replaced by one of its `own` that is `listed` (HOST:PORT).

    For a time when a host is missing: the link that joins the others may be another one than that of all.
    """
    before = {address.rpartition(":")[0] for address in listed}
    return {name: next((one for one in own[name] if one in before), address) for name, address in addresses.items()}


def in_turns(
    hosts: Iterable[FleetHost], leader: FleetHost, restarting: Collection[str]
) -> tuple[tuple[FleetHost, ...], tuple[FleetHost, ...]]:
    """Which hosts start at the same time, and which one after the other: those whose running engine restarts.

    The leader's turn is first: the others leave its router's list and return to it. `restarting` are names.
    """
    every = tuple(hosts)
    turns = sorted((host for host in every if host.name in restarting), key=lambda host: host is not leader)
    return tuple(host for host in every if host.name not in restarting), tuple(turns)


def routed_hosts(front: Front, urls: Collection[str]) -> frozenset[str]:
    """The names of the hosts to whose engines the router sends requests. `urls` are those that it sends to.

    The leader's own engine has a private address: any that is not of another host.
    """
    found = {name for name, address in front.engines.items() if f"http://{address}" in urls}
    others = {f"http://{address}" for address in (*front.engines.values(), *front.unknown)}
    return frozenset({*found, front.host.name} if set(urls) - others else found)
