"""What a deployment needs of the network: its port, the Hub and the clock, and a domain."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ssl import SSLContext

import httpx

from dflash_deploy.doctor.check import Check, DoctorContext, Status
from dflash_deploy.door import HTTP, HTTPS, Site, published_site
from dflash_deploy.errors import DeployError, SettingsRefused
from dflash_deploy.host.net import ROCE_V2, Link, answers, read_links
from dflash_deploy.host.ports import foreign_bind, is_address_here, listener_on, other_port
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.hub import (
    TOKENS,
    TRANSIENT,
    Source,
    authorization,
    is_page,
    refusal,
    unreachable,
    without_credentials,
)

# The maximum clock difference; beyond it certificates can look expired or not yet valid.
CLOCK_TOLERANCE = timedelta(minutes=5)

_NEW_TOKEN = f"make a new token at {TOKENS} and set {Settings.hf_token} in .env"


def port(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the address is this machine's, and the port is free or held by this deployment's own engine."""
    host, number = plan.settings.dflash_bind, plan.settings.dflash_port
    state = subject.engine_state
    if state.holds(host, number):
        yield Check("port", "ok", f"{host}:{number} is held by this deployment's own engine")
    elif plan.settings.answers_requests and (foreign := foreign_bind(host)) is not None:
        yield Check("port", "no", *foreign)
    elif listener_on(host, number):
        saw = f"another process already listens on {host}:{number}"
        yield Check("port", "no", saw, other_port(host, number))
    else:
        yield Check("port", "ok", f"{host}:{number} is free")


def hub(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """The Hub, the token, and, from the same response, the clock."""
    repos = [model.repo for model in subject.weights if model.repo]
    if not repos:
        yield Check("hub", "skipped", "both models come with dflash-deploy; nothing to download")
        return
    missing = [model for model in subject.weights if model.repo and not model.there]
    gated = next((model.repo or "" for model in missing if model.gated), "")
    answer = ask_hub(subject.hub, subject.token, repos[-1])
    yield judge_hub(
        without_credentials(subject.hub), answer, token=bool(subject.token), missing=bool(missing), gated=gated
    )
    yield judge_clock(answer)


def judge_hub(hub: str, answer: HubAnswer, *, token: bool, missing: bool, gated: str) -> Check:
    """The result for one response. An unusable Hub is an error only while weights are missing.

    `gated` is a missing repository that requires an account; empty if none does.
    """
    if answer.problem:
        # a busy Hub answers `pull`, which asks several times
        in_the_way: Status = "no" if missing and answer.status not in TRANSIENT else "warning"
        beside = "" if missing else "; all weights are already on disk"
        return Check("hub", in_the_way, f"{answer.problem}{beside}", answer.fix)
    if gated and not token:
        saw = f"{hub} responds, but {gated} is gated and {Settings.hf_token} is not set"
        return Check("hub", "no", saw, f"accept the licence on the repository's page, then {_NEW_TOKEN}")
    accepted = f" and accepts {Settings.hf_token}" if token else f"; {Settings.hf_token} is not set"
    return Check("hub", "ok", f"{hub} responds{accepted}")


def judge_clock(answer: HubAnswer) -> Check:
    """Compare this machine's clock with the date of the Hub's response."""
    if answer.ahead is None:
        return Check("clock", "skipped", "the Hub's response has no date")
    seconds = answer.ahead.total_seconds()
    differs = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the Hub's"
    if abs(answer.ahead) <= CLOCK_TOLERANCE:
        return Check("clock", "ok", f"this clock is {differs}")
    saw = f"this clock is {differs}: certificates look expired or not yet valid"
    return Check("clock", "no", saw, "set the clock: `timedatectl set-ntp true`")


TIMEOUT = 5.0  # seconds for the Hub to respond


@dataclass(frozen=True)
class HubAnswer:
    """The response of the Hub. `status` is `None` without a response; `problem` says why, or why it is a refusal.

    `ahead` is this machine's clock minus the Hub's; `None` if the response has no date. `fix` is the next step.
    """

    status: int | None = None
    problem: str = ""
    ahead: timedelta | None = None
    fix: str = ""


def ask_hub(hub: str, token: Secret, repo: str, *, timeout: float = TIMEOUT) -> HubAnswer:
    """Request the repository as `pull` does. The Hub rejects an invalid token for public repositories too."""
    answer, error = None, None
    try:
        source = Source.of(token, hub)
        with new_client(timeout=timeout, headers=authorization(token)) as client:
            request = client.build_request("HEAD", f"{source.endpoint}/api/models/{repo}")
            answer = fetch_answer(client, request, seconds=2 * timeout, redirects=True)
        if not answer.succeeded or is_page(answer.headers):
            error = refusal(answer.status, answer.headers, answer.url, source, repo)
    except httpx.HTTPError as problem:
        error = unreachable(problem, source)
    except DeployError as problem:
        error = problem
    said, fix = (error.message, error.hint) if error else ("", "")
    return HubAnswer(answer.status, said, _ahead(answer.headers), fix) if answer else HubAnswer(problem=said, fix=fix)


def ask_date(url: str, trust: SSLContext | None = None, *, timeout: float = TIMEOUT) -> HubAnswer:
    """The response of any URL; `trust` replaces the public authorities."""
    try:
        with new_client(timeout=timeout, verify=trust or True) as client:
            answer = fetch_answer(client, client.build_request("GET", url), seconds=2 * timeout)
    except SettingsRefused as problem:
        return HubAnswer(problem=f"{problem.message}; {problem.hint}")
    except (httpx.HTTPError, httpx.InvalidURL, Invalid, ValueError) as problem:
        return HubAnswer(problem=str(problem)[:300] or type(problem).__name__)
    return HubAnswer(answer.status, ahead=_ahead(answer.headers))


def _ahead(headers: httpx.Headers) -> timedelta | None:
    """This clock minus the Hub's. The header `age` of a cached response is subtracted."""
    try:
        date = parsedate_to_datetime(headers["date"])
        age = int(headers.get("age", "0"))
        return datetime.now(UTC) - date - timedelta(seconds=age)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


# Variables of the engine's libraries that name the interface of the link.
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")


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


def domain(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the name of the domain leads to this machine; nothing without a domain."""
    if (site := published_site(plan.settings)) is not None:
        yield judge_name(site, _addresses(site.host))


def judge_name(site: Site, addresses: tuple[str, ...]) -> Check:
    """Whether the name leads to this machine: a public authority connects to it before it signs."""
    if not addresses:
        status: Status = "warning" if site.is_private else "no"
        fix = f"add an A or AAAA record for {site.host} that points to this machine"
        if site.is_private:
            fix = f"add {site.host} to the DNS of your network, or to /etc/hosts of this machine and of each client"
        return Check("dns", status, f"{site.host} does not resolve", fix)
    said = ", ".join(addresses)
    if any(map(is_address_here, addresses)):
        here = "this machine" if site.is_address else f"{said}, this machine"
        return Check("dns", "ok", f"{site.host} is {here}")
    if site.is_address:
        fix = f"set {Settings.dflash_domain} to an address of `ip addr`, unless a router forwards this one here"
        return Check("dns", "warning", f"{site.host} is not an address of this machine", fix)
    saw = f"{site.host} is {said}, not an address of this machine"
    fix = f"correct the DNS record, unless a router or load balancer forwards ports {HTTP} and {HTTPS} to this machine"
    return Check("dns", "warning", saw, fix)


def _addresses(host: str) -> tuple[str, ...]:
    """The addresses of a name as this machine resolves it; empty if it does not."""
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(place[4][0]) for place in found))
