"""The links of a host, and the one that joins the hosts of a fleet; pure. `machine` reads what this takes.

Sources: NVIDIA's playbooks connect-two-sparks, nccl and vllm (0db7c14), eugr/spark-vllm-docker 74c02c3. A port of a DGX
Spark is two interfaces and two RoCE devices (twins), each with an address in another network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dflash_deploy.errors import HostUnfit
from dflash_deploy.fleet.file import FILE, Fleet, FleetHost
from dflash_deploy.intake import Invalid, parse_json
from dflash_deploy.intake.answers import ForeignDocument

ROCE_V2 = "RoCE v2"
"""The type of a GID that routes, as the kernel writes it."""

Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")]
Device = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]


class Link(ForeignDocument):
    """One network interface with an IPv4 address.

    `speed` is in Mbit/s, `None` if unknown. `rdma` is its RoCE device, `gid` the index of the GID of type RoCE v2 for
    `address`; empty and `None` without.
    """

    interface: Interface
    address: Annotated[str, Field(max_length=15), AfterValidator(lambda text: str(ipaddress.IPv4Address(text)))]
    prefix: Annotated[int, Field(ge=0, le=32)]
    up: bool
    mtu: Annotated[int, Field(ge=0, lt=2**31)]
    speed: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    rdma: Device = ""
    gid: Annotated[int | None, Field(ge=0, lt=2**16)] = None

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The network of its address."""
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False)

    def document(self) -> dict[str, object]:
        """One of `links` in `fleet facts --json`."""
        return self.model_dump()


@dataclass(frozen=True)
class Fabric:
    """The link that joins all hosts. `ports` has the interface of each host, `twins` the further ones of the cable."""

    ports: Mapping[str, Link]
    twins: Mapping[str, tuple[Link, ...]]

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


def links_of(addresses: str, sysfs: Mapping[str, str]) -> tuple[Link, ...]:
    """Return the links in the output of `ip -j address` and in files of /sys/class, by their path below it."""
    try:
        found = parse_json(addresses)
    except Invalid:
        return ()
    entries = found if isinstance(found, list) else ()
    return tuple(link for entry in entries if isinstance(entry, dict) for link in _links_in(entry, sysfs))


def _links_in(entry: Mapping[str, Any], sysfs: Mapping[str, str]) -> Iterator[Link]:
    name = str(entry.get("ifname", ""))
    device = next((path.split("/")[1] for path in sysfs if path.endswith(f"/device/net/{name}")), "")
    speed = sysfs.get(f"net/{name}/speed", "")
    for info in entry.get("addr_info", ()):
        if not isinstance(info, dict) or info.get("family") != "inet":
            continue
        address = str(info.get("local", ""))
        try:
            yield Link(
                interface=name,
                address=address,
                prefix=int(info.get("prefixlen", 32)),
                up=entry.get("operstate") in {"UP", "UNKNOWN"} and "LOWER_UP" in entry.get("flags", ("LOWER_UP",)),
                mtu=int(entry.get("mtu", 0)),
                speed=int(speed) if speed.isdigit() else None,
                rdma=device,
                gid=_gid(device, address, sysfs),
            )
        except ValueError:
            continue


def _gid(device: str, address: str, sysfs: Mapping[str, str]) -> int | None:
    """The index of the GID of type RoCE v2 that an IPv4 address has on a RoCE device."""
    if not device:
        return None
    try:
        wanted = ipaddress.IPv6Address(f"::ffff:{address}")
    except ValueError:
        return None
    for path, text in sysfs.items():
        owner, _, index = path.rpartition("/gids/")
        if not (owner.startswith(f"infiniband/{device}/ports/") and index.isdigit()):
            continue
        if sysfs.get(f"{owner}/gid_attrs/types/{index}") == ROCE_V2 and _ipv6(text) == wanted:
            return int(index)
    return None


def _ipv6(text: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        return None


def find_fabric(fleet: Fleet, links: Mapping[str, Sequence[Link]]) -> Fabric:
    """Return the link that joins all hosts: RoCE before others, then the fastest; the network of SSH comes last.

    Raises HostUnfit if no network has an address on each host, or `fabric` in `fleet.yaml` names another interface.
    """
    found = sorted(_shared(fleet, links), key=lambda ports: _rank(fleet, ports), reverse=True)
    for host in fleet.hosts:
        if host.fabric and host.fabric not in {link.interface for link in links[host.name] if link.up}:
            raise HostUnfit(
                f"{host.name}: the interface {host.fabric} is down, missing, or has no IPv4 address",
                hint=f"check the cable and `ip -brief address` on the host, or correct `fabric` in {FILE}",
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
