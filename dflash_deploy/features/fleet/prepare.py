"""The hosts of a fleet: what each needs, and the link between them.

Before an engine starts, a host needs SSH, tools, disk, clock, this version of dflash-deploy, and its files. The rest is
pure: the link that joins the hosts. A port of a DGX Spark is two
interfaces and two RoCE devices (twins), each with an address in another network.

Sources: NVIDIA's playbooks connect-two-sparks, nccl and vllm (0db7c14), eugr/spark-vllm-docker 74c02c3.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dflash_deploy import __version__
from dflash_deploy.deployment.directory import FLEET_FILE
from dflash_deploy.errors import FleetRefused, HostUnfit
from dflash_deploy.features.fleet import scripts, ssh
from dflash_deploy.features.fleet.file import Fleet, FleetHost, Place
from dflash_deploy.features.fleet.ssh import Session
from dflash_deploy.host.net import ROCE_V2, Link
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.files import MIB, read_bytes
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.command import in_home

LARGEST_WHEEL = 64 * MIB

CLOCK_TOLERANCE = 300
"""Seconds that the clock of a host may differ; beyond that certificates look expired or not yet valid."""

LEAST_SPACE = 200 * MIB
"""Bytes that an environment with dflash-deploy needs, without an engine."""

INSTALLS = 1800.0
"""Seconds for an installation: an engine is several gigabytes."""

Say = Callable[[str], None]
"""Takes one line of progress of a host."""


@dataclass(frozen=True)
class ExaminedHost:
    """A host as `scripts.examine` finds it. `ahead` is the difference of its clock in seconds, `free` is in bytes."""

    home: str
    system: str
    ahead: int
    free: int
    lacks: tuple[str, ...]


class RemoteEngine(ForeignDocument):
    """The process or container of an engine on a host."""

    phase: str = Field(max_length=40)


class RemoteFacts(ForeignDocument):
    """What `fleet facts` prints on a host."""

    home: str = Field(max_length=1000)
    assets: str = Field(max_length=1000)
    links: list[Link] = Field(default_factory=list, max_length=1000)
    drivers: list[str] = Field(default_factory=list, max_length=100)
    peers: dict[str, bool] = Field(default_factory=dict, max_length=100)
    engine: RemoteEngine | None = None
    router_engines: list[Annotated[str, Field(max_length=400)]] = Field(default_factory=list, max_length=1000)
    routed: list[Annotated[str, Field(max_length=400)]] = Field(default_factory=list, max_length=1000)

    @property
    def place(self) -> Place:
        """Where paths begin on the host."""
        return Place(self.home, self.assets)


class FactsDocument(ForeignDocument):
    """The document of `fleet facts`."""

    data: RemoteFacts


@dataclass(frozen=True)
class Wheel:
    """A wheel of this version of dflash-deploy, to be installed on the hosts."""

    name: str
    content: bytes
    digest: str


def read_wheel(fleet: Fleet, directory: Path) -> Wheel | None:
    """Return the wheel that `fleet.yaml` names; `None` without one. Raises FleetRefused, FileRefused."""
    if not fleet.install.wheel:
        return None
    file = directory / in_home(Path(fleet.install.wheel))
    if not (file.name.startswith(f"dflash_deploy-{__version__}-") and file.name.endswith(".whl")):
        raise FleetRefused(
            f"{FLEET_FILE}: {file.name} is not a wheel of dflash-deploy {__version__}",
            hint="the hosts need the version of this machine: `make dist` builds its wheel",
        )
    content = read_bytes(file, limit=LARGEST_WHEEL)
    return Wheel(file.name, content, hashlib.sha256(content).hexdigest())


def environment_of(fleet: Fleet, wheel: Wheel | None) -> str:
    """Return the name of the environment on a host: another version, wheel or engine gets another one."""
    origin = wheel.digest[:12] if wheel else "index"
    return "-".join((__version__, origin, *sorted(fleet.install.extras)))


def parse_examined(text: str, now: float) -> ExaminedHost | None:
    """Return what `scripts.examine` printed; `None` if a line is missing. `now` is the time on this machine."""
    facts: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        facts.setdefault(name, []).append(value.strip())
    try:
        return ExaminedHost(
            home=facts["home"][0],
            system=facts["system"][0],
            ahead=round(int(facts["clock"][0]) - now),
            free=int(facts["free"][0]) * 1024,
            lacks=tuple(facts.get("lacks", ())),
        )
    except (KeyError, ValueError):
        return None


def judge_examined(host: FleetHost, found: ExaminedHost) -> None:
    """Raise HostUnfit for a host that cannot be used."""
    name, way = host.name, ssh.reached_by(host)
    if not found.system.startswith("Linux "):
        raise HostUnfit(f"{name}: it runs {found.system}, not Linux", hint="use a host with Linux")
    if found.lacks:
        raise HostUnfit(
            f"{name}: {', '.join(found.lacks)} is missing", hint="apt-get install util-linux coreutils, on the host"
        )
    if abs(found.ahead) > CLOCK_TOLERANCE:
        raise HostUnfit(
            f"{name}: its clock is {abs(found.ahead)} s {'ahead of' if found.ahead > 0 else 'behind'} this machine's",
            hint=f"set it: `ssh {way} sudo timedatectl set-ntp true`",
        )
    if found.free < MIB:
        raise ssh.full_disk(host)


def examine(session: Session) -> ExaminedHost:
    """Return what a host is. Raises HostUnfit if it cannot be used, and what `Session.run` raises."""
    began = time.time()
    text = session.require(scripts.examine())
    found = parse_examined(text, (began + time.time()) / 2)
    if found is None:
        raise HostUnfit(
            f"{session.host.name}: it does not print what was asked: {ssh.last_line(text)}",
            hint="check its login shell, and that its start-up files print nothing",
        )
    judge_examined(session.host, found)
    return found


def install(session: Session, wheel: Wheel | None, found: ExaminedHost, say: Say) -> None:
    """Install this version on a host, unless it is there. Raises HostUnfit, and what `Session.run` raises."""
    host, fleet = session.host, session.fleet
    environment = environment_of(fleet, wheel)
    if host.program or session.run(scripts.run(host, environment, "--version")).code == 0:
        return
    if found.free < LEAST_SPACE:
        raise ssh.full_disk(host)
    extras = f"[{','.join(sorted(fleet.install.extras))}]" if fleet.install.extras else ""
    spec = f"dflash-deploy{extras}=={__version__}"
    if wheel is not None:
        say(f"copies {wheel.name}")
        session.send(wheel.content, f"{scripts.ROOT}/{wheel.name}", seconds=INSTALLS)
        spec = f"wheel:{wheel.name}{extras}"
    say(f"installs dflash-deploy {__version__}")
    session.require(scripts.install(environment, spec), seconds=INSTALLS)


def read_facts(session: Session, environment: str, *options: str) -> RemoteFacts:
    """Return what `fleet facts` prints on a host. Raises HostUnfit, also if it has another version."""
    text = session.require(scripts.run(session.host, environment, "fleet", "facts", "--json", *options))
    try:
        return read_document(text, FactsDocument).data
    except Invalid as problem:
        raise HostUnfit(
            f"{session.host.name}: the output of `fleet facts` {problem}",
            hint="check that the shell's start-up files on the host print nothing",
        ) from None


@dataclass(frozen=True)
class Fabric:
    """The link that joins all hosts. `ports` has the interface of each host, `twins` the further ones of the cable."""

    ports: Mapping[str, Link]
    twins: Mapping[str, tuple[Link, ...]]

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host on this link."""
        return {name: port.address for name, port in self.ports.items()}

    def settings(self, host: FleetHost) -> dict[str, str]:
        """The variables with which the engine of a host uses this link, and not the one of SSH."""
        port = self.ports[host.name]
        values = {
            "VLLM_HOST_IP": port.address,
            "GLOO_SOCKET_IFNAME": port.interface,
            "NCCL_SOCKET_IFNAME": port.interface,
            "TP_SOCKET_IFNAME": port.interface,
            "UCX_NET_DEVICES": port.interface,
        }
        devices = [link.rdma for link in (port, *self.twins[host.name]) if link.rdma]
        if port.rdma and port.gid is not None:
            values |= {
                "NCCL_IB_DISABLE": "0",
                "NCCL_IB_HCA": ",".join(devices),
                "NCCL_IB_GID_INDEX": str(port.gid),
                "NCCL_IGNORE_CPU_AFFINITY": "1",
            }
        return values


def find_fabric(fleet: Fleet, links: Mapping[str, Sequence[Link]]) -> Fabric:
    """Return the link that joins all hosts: RoCE before others, then the fastest; the network of SSH comes last.

    Raises HostUnfit if no network has an address on each host, or `fabric` in `fleet.yaml` names another interface.
    """
    found = sorted(_shared(fleet, links), key=lambda ports: _rank(fleet, ports), reverse=True)
    for host in fleet.hosts:
        if host.fabric and host.fabric not in {link.interface for link in links[host.name] if link.up}:
            raise HostUnfit(
                f"{host.name}: the interface {host.fabric} is down, missing, or has no IPv4 address",
                hint=f"check the cable and `ip -brief address` on the host, or correct `fabric` in {FLEET_FILE}",
            )
    chosen = next((ports for ports in found if _asked_for(fleet, ports)), None)
    if chosen is None:
        raise HostUnfit(
            "no link joins the hosts: they have no network in common",
            hint="give both ends of the cable addresses in one network: NVIDIA playbook connect-two-sparks",
        )
    others = [ports for ports in found if ports is not chosen and all(link.rdma for link in ports.values())]
    twins = {host.name: tuple(ports[host.name] for ports in others) for host in fleet.hosts}
    return Fabric(chosen, twins)


def _shared(fleet: Fleet, links: Mapping[str, Sequence[Link]]) -> Iterator[Mapping[str, Link]]:
    """The networks in which each host has an address of its own: the link of each host."""
    first = fleet.hosts[0].name
    for link in links[first]:
        if not _usable(link):
            continue
        ports = {first: link}
        for host in fleet.hosts[1:]:
            peer = next((one for one in links[host.name] if _usable(one) and one.network == link.network), None)
            if peer is not None:
                ports[host.name] = peer
        # a bridge of Docker has the same address everywhere
        if len({port.address for port in ports.values()}) == len(fleet.hosts):
            yield ports


def _usable(link: Link) -> bool:
    address = ipaddress.IPv4Address(link.address)
    return link.up and not (address.is_loopback or address.is_link_local)


def _rank(fleet: Fleet, ports: Mapping[str, Link]) -> tuple[bool, int, bool, int]:
    of_ssh = any(host.address == ports[host.name].address for host in fleet.hosts)
    speeds = [link.speed or 0 for link in ports.values()]
    return all(link.rdma for link in ports.values()), min(speeds), not of_ssh, min(link.mtu for link in ports.values())


def _asked_for(fleet: Fleet, ports: Mapping[str, Link]) -> bool:
    return all(not host.fabric or ports[host.name].interface == host.fabric for host in fleet.hosts)


def questions_to_peers(addresses: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The options of `fleet facts` on a host that ask whether the others answer it over the link.

    `addresses` are those of all hosts on the link, by name.
    """
    peers = (word for other, address in addresses.items() if other != name for word in ("--peer", address))
    return "--source", addresses[name], *peers


def judge_hosts(drivers: Mapping[str, Sequence[str]], peers: Mapping[str, Mapping[str, bool]]) -> None:
    """Raise HostUnfit if the GPU drivers of the hosts differ, or a host does not answer another one over the link.

    `peers` has for each host the addresses on the link that it asked, and whether they answered.
    """
    if len({tuple(found) for found in drivers.values()}) > 1:
        said = ", ".join(f"{name} {' '.join(found) or 'none'}" for name, found in drivers.items())
        raise HostUnfit(f"the GPU drivers differ: {said}", hint="install the same driver on all hosts")
    for name, answers in peers.items():
        for address, answered in answers.items():
            if not answered:
                raise HostUnfit(
                    f"{name}: {address} does not answer over the link",
                    hint="check the cable and the firewall: `ping` it from this host",
                )


def judge_fabric(fleet: Fleet, fabric: Fabric) -> None:
    """Raise HostUnfit if the ends of the link differ, or a RoCE device has no GID of type RoCE v2."""
    sizes = {host.name: fabric.ports[host.name].mtu for host in fleet.hosts}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise HostUnfit(
            f"the MTU of the link differs: {said}", hint="set the same on both ends: `ip link set INTERFACE mtu 9000`"
        )
    for host in fleet.hosts:
        for link in (fabric.ports[host.name], *fabric.twins[host.name]):
            if link.rdma and link.gid is None:
                raise HostUnfit(
                    f"{host.name}: {link.rdma} has no GID of type {ROCE_V2} for {link.address}",
                    hint="give the interface its address again (`netplan apply`), and check `show_gids`",
                )
