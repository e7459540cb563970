"""The link that joins the hosts of a fleet; pure.

Sources: NVIDIA's playbooks connect-two-sparks, nccl and vllm (0db7c14), eugr/spark-vllm-docker 74c02c3. A port of a DGX
Spark is two interfaces and two RoCE devices (twins), each with an address in another network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dflash_deploy.errors import HostUnfit
from dflash_deploy.fleet.file import FILE, Fleet, FleetHost
from dflash_deploy.host.links import ROCE_V2, Link


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
