"""What HTTPS under a domain needs: Caddy, a name that leads here, two ports, a right clock, an authority."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Iterator

from dflash_deploy.doctor.check import Check, DoctorContext, Status
from dflash_deploy.doctor.network import CLOCK_TOLERANCE, HubAnswer, ask_date
from dflash_deploy.door.caddy import Caddy, find_caddy
from dflash_deploy.door.site import Site, published_site
from dflash_deploy.errors import DeployError, EngineMissing, SettingsRefused
from dflash_deploy.host.ports import is_address_here, listener_on, may_listen_on
from dflash_deploy.intake.answers import trusting
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.domain import may_listen_from
from dflash_deploy.runtime.select import door_before
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Settings

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"

EVERYWHERE = "0.0.0.0"  # noqa: S104

_UNSYNCHRONISED = 5
"""What adjtimex returns if no time service has set the clock (TIME_ERROR in sys/timex.h)."""
_TIMEX_BYTES = 512
"""More than struct timex has on any machine."""

_SET_CLOCK = "set the clock: `timedatectl set-ntp true`"


def domain(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Everything that HTTPS needs beside the engine; nothing without a domain."""
    site = published_site(plan.settings)
    if site is None:
        return
    caddy: Caddy | None = None
    try:
        # a container has its own
        if plan.runtime == "native":
            caddy = find_caddy(needed_by=f"{Settings.dflash_domain}={site.host}")
            yield Check("caddy", "ok", f"{caddy.program} is Caddy {'.'.join(map(str, caddy.version))}")
    except EngineMissing as problem:
        yield Check("caddy", "no", problem.message, problem.hint)
    yield judge_name(site, _addresses(site.host), public=_needs_public_name(site, plan))
    ours = _door_runs(subject, plan)
    for field, number in (
        (Settings.dflash_http_port, site.http_port),
        (Settings.dflash_https_port, site.https_port),
    ):
        yield judge_port(
            field, number, ours=ours, allowed=_listens_for_us(subject, plan) or bool(caddy and caddy.may_bind)
        )
    yield from _clock(subject, site, plan)


def judge_name(site: Site, addresses: tuple[str, ...], *, public: bool) -> Check:
    """Whether the name leads to this machine. `public`: an authority connects to it before it signs."""
    if not addresses:
        status: Status = "no" if public else "warning"
        fix = f"add an A or AAAA record for {site.host} that points to this machine"
        if not public:
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
    fix = f"correct the DNS record, unless a router or load balancer forwards ports {site.http_port} and "
    return Check("dns", "warning", saw, f"{fix}{site.https_port} to this machine")


def judge_port(field: Field[int], number: int, *, ours: bool, allowed: bool = False) -> Check:
    """Whether a port can be used. `ours`: this deployment's own Caddy runs. `allowed`: also if this user may not."""
    name = f"port {number}"
    if listener_on(EVERYWHERE, number):
        if ours:
            return Check(name, "ok", f"port {number} is held by this deployment's own Caddy")
        fix = f"find the process with `ss -ltnp`, or set another {field} in .env"
        return Check(name, "no", f"another process already listens on port {number}", fix)
    if not allowed and not may_listen_on(EVERYWHERE, number):
        fix = f"{may_listen_from(number)}, or set another {field} in .env"
        return Check(name, "no", f"this user may not listen on port {number}", fix)
    return Check(name, "ok", f"port {number} is free")


def judge_authority(url: str, answer: HubAnswer) -> Iterator[Check]:
    """Whether the authority responds, and this machine's clock against its date."""
    if answer.status is None:
        fix = f"check the network, and {Settings.dflash_acme_url} if it is an authority of your own"
        yield Check("authority", "no", f"{url} cannot be reached: {answer.problem}", fix)
        return
    yield Check("authority", "ok", f"{url} responds")
    if answer.ahead is not None and abs(answer.ahead) > CLOCK_TOLERANCE:
        seconds = answer.ahead.total_seconds()
        differs = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the authority's"
        saw = f"this clock is {differs}: certificates look expired or not yet valid"
        yield Check("authority clock", "no", saw, _SET_CLOCK)


def _clock(subject: DoctorContext, site: Site, plan: Plan) -> Iterator[Check]:
    settings = plan.settings
    if _needs_authority(site, plan):
        url, root = settings.dflash_acme_url or LETS_ENCRYPT, settings.dflash_acme_root
        try:
            trust = trusting(subject.deployment.path(root)) if root and subject.deployment else None
        except SettingsRefused as problem:
            yield Check("authority", "no", problem.message, problem.hint)
            return
        yield from judge_authority(url, ask_date(url, trust))
    if _adjtimex() == _UNSYNCHRONISED:
        yield Check("time service", "warning", "no time service has set this machine's clock", _SET_CLOCK)
    else:
        yield Check("time service", "ok", "a time service sets this machine's clock")


def _door_runs(subject: DoctorContext, plan: Plan) -> bool:
    door = door_before(subject.deployment, plan) if subject.deployment else None
    try:
        return door is not None and door.state().phase == "running"
    except DeployError:
        # another check names a Docker that does not respond
        return False


def _listens_for_us(subject: DoctorContext, plan: Plan) -> bool:
    """Whether the daemon of root listens in place of this user."""
    docker = subject.facts.container_engine if plan.runtime == "compose" else None
    return docker is not None and not docker.rootless


def _needs_authority(site: Site, plan: Plan) -> bool:
    return bool(plan.settings.dflash_acme_url) or not site.is_private


def _needs_public_name(site: Site, plan: Plan) -> bool:
    return not plan.settings.dflash_acme_url and not site.is_private


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


def _adjtimex() -> int:
    """What the kernel says of its clock; -1 if it does not say."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        return int(ctypes.CDLL(None).adjtimex(timex))
    except (OSError, AttributeError):
        return -1
