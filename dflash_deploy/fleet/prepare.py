"""What a host needs before an engine starts: SSH, tools, disk, clock, this version of dflash-deploy, and its files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dflash_deploy import __version__
from dflash_deploy.errors import FleetRefused, HostUnfit
from dflash_deploy.fleet import problems, scripts
from dflash_deploy.fleet.file import FILE, Fleet, FleetHost
from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.shape import Place
from dflash_deploy.host.links import Link
from dflash_deploy.intake import MIB, Invalid, read_bytes
from dflash_deploy.intake.answers import ForeignDocument, read_document
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
    identity: str | None = Field(None, max_length=400)
    restarts: int = Field(0, ge=0, lt=2**31)
    hangs: bool = False


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
            f"{FILE}: {file.name} is not a wheel of dflash-deploy {__version__}",
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
    name, way = host.name, problems.reached_by(host)
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
        raise problems.full_disk(host)


def examine(session: Session) -> ExaminedHost:
    """Return what a host is. Raises HostUnfit if it cannot be used, and what `Session.run` raises."""
    began = time.time()
    text = session.require(scripts.examine())
    found = parse_examined(text, (began + time.time()) / 2)
    if found is None:
        raise HostUnfit(
            f"{session.host.name}: it does not print what was asked: {problems.last_line(text)}",
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
        raise problems.full_disk(host)
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
