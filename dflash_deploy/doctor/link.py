"""The link between several machines that serve one model together: interface, address, RoCE, and the leader."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from dflash_deploy.doctor.check import Check
from dflash_deploy.doctor.context import DoctorContext
from dflash_deploy.host.interfaces import answers, read_links
from dflash_deploy.host.links import ROCE_V2, Link
from dflash_deploy.plan import Plan
from dflash_deploy.serve.settings import Settings

INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
"""Variables of the engine's libraries that name the interface of the link."""


def link(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """The interface that joins this machine with the others, and whether rank 0 answers over it."""
    if not plan.settings.several_machines:
        return
    links = read_links()
    yield judge_link(plan, links)
    port = port_to(plan.settings.master_addr, links)
    if port is not None and not plan.settings.answers_requests:
        yield judge_leader(plan, port, answered=answers(plan.settings.master_addr, source=port.address))


def port_to(master: str, links: Sequence[Link]) -> Link | None:
    """The link of this machine in the network of the leader's address; `None` if it has none that is up."""
    try:
        address = ipaddress.IPv4Address(master)
    except ValueError:
        return None
    return next((found for found in links if found.up and address in found.network), None)


def judge_link(plan: Plan, links: Sequence[Link]) -> Check:
    """The result for the links of this machine."""
    master, named = plan.settings.master_addr, {plan.values.get(name, "") for name in INTERFACE_NAMES} - {""}
    port = port_to(master, links)
    there = ", ".join(f"{found.interface} {found.address}" for found in links if found.up) or "none"
    if port is None:
        saw = f"no interface is up in the network of {Settings.master_addr}=`{master}`"
        fix = f"correct {Settings.master_addr}, or give the end of the cable an address in its network; there: {there}"
        return Check("link", "no", saw, fix)
    if plan.settings.answers_requests and port.address != master:
        saw = f"this machine is rank 0, but {Settings.master_addr}=`{master}` is not its address on {port.interface}"
        return Check("link", "no", saw, f"set {Settings.master_addr}={port.address}, on all machines")
    if other := sorted(named - {port.interface}):
        name = next(name for name in INTERFACE_NAMES if plan.values.get(name) == other[0])
        saw = f"{name}={other[0]}, but {Settings.master_addr}=`{master}` is reached over {port.interface}"
        return Check("link", "no", saw, f"set {name}={port.interface}")
    if port.rdma and port.gid is None:
        saw = f"{port.rdma} has no GID of type {ROCE_V2} for {port.address}"
        return Check("link", "no", saw, "give the interface its address again (`netplan apply`), and check `show_gids`")
    device = f", {port.rdma} with GID {port.gid} ({ROCE_V2})" if port.rdma else ", without RDMA"
    return Check("link", "ok", f"{port.interface} has {port.address}{device}, MTU {port.mtu}: the others need the same")


def judge_leader(plan: Plan, port: Link, *, answered: bool) -> Check:
    """The result for the answer of rank 0."""
    master = plan.settings.master_addr
    if answered:
        return Check("leader", "ok", f"{master} answers over {port.interface}")
    saw = f"{master} does not answer over {port.interface}"
    return Check("leader", "no", saw, f"check the cable and the firewall: `ping -I {port.interface} {master}`")
