"""Engines as supervised processes of this machine, with their router and their published door.

The engine is installed in the environment of this Python. The settings give what the door, Caddy, serves and where it
sends it. It is in front of several engines or of one.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Set
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.front import make_router_keys, router_directory, storage_of, write_owned
from dflash_deploy.deployment.keys import keys_file, write_keys
from dflash_deploy.door.caddy import Caddy, find_caddy, refusal
from dflash_deploy.door.caddyfile import Door, caddyfile
from dflash_deploy.door.site import Authority, Plain, published_site
from dflash_deploy.errors import DOCS, DeployError, EngineMissing, EngineNotReady, PortTaken, PreflightRefused
from dflash_deploy.host.ports import listener_on, may_listen_on
from dflash_deploy.intake.documents import Report, log_damage
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.replicas import LOOPBACK, engine_port, router_port
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.domain import (
    CERTIFIED,
    EVERYWHERE,
    WILDCARDS,
    awaited_certificate,
    check_free,
    check_root,
    joined,
    may_listen_from,
    ports_of,
    said_at_end,
)
from dflash_deploy.runtime.native_process import DOOR, ROUTER, RUN_FILE, Invocation, NativeProcess
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.several import Several
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.gateway.asgi import MIB
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.router.files import DIRECTORY
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import RuntimeName, Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.door.site import Site
    from dflash_deploy.serve.field import Field
    from dflash_deploy.serve.settings import Settings as Values


STOP_GRACE = 45.0
"""Seconds the engine gets to stop before it is killed."""


class NativeRuntime:
    """One deployment as a process. Its supervisor redacts the log and saves the exit code."""

    name: RuntimeName = "native"

    def __init__(self, deployment: Deployment, plan: Plan, report: Report = log_damage) -> None:
        """`report` takes one line for each damaged state file."""
        self._deployment = deployment
        self._plan = plan
        self._process = NativeProcess(
            deployment.engine_state, "engine", self._redacted, grace=STOP_GRACE, report=report
        )

    def preflight(self) -> None:
        """Raise EngineMissing if this Python's environment lacks the engine, or has another build of it."""
        kind = self._plan.engine.kind
        named = self._plan.settings.llama_server if kind.knows(Settings.llama_server) else ""
        how = kind.how_to_install(self._plan.engine.native or kind.name)
        for problem in kind.shortcomings(Path(named)) if named else ():
            raise EngineMissing(f"{Settings.llama_server}: {problem}", hint=how)
        engine = kind.installed(self._plan.settings)
        if engine is None:
            raise EngineMissing(
                f"{kind.title} is not installed in the environment of {sys.executable}",
                hint=f"{how}, or use Docker with `dflash-deploy init --force --runtime compose`",
            )
        if engine.cpu != self._plan.engine.cpu:
            build = "the CPU build" if engine.cpu else "a build for GPUs"
            raise EngineMissing(
                f"profile {self._plan.profile.name} needs another {kind.title}: {engine.version} is {build}",
                hint=f"install dflash-deploy with that build into a new environment: {DOCS}/how-to/install.md",
            )

    def start(self, narrate: Narrate) -> bool:
        """Start the engine; stop one that runs with other settings first."""
        launch = Invocation(self._environment(), self._config(), self._address, self._deployment.directory)
        # a running engine reads them again
        write_keys(self._deployment)
        self._deployment.make_state()
        return self._process.start(launch, narrate)

    def is_current(self) -> bool:
        """Return whether the engine runs with these settings."""
        return self._process.runs(self._config())

    @property
    def private_url(self) -> str:
        """The URL at which the router reaches the engine."""
        return f"http://{self._address}"

    @property
    def _address(self) -> str:
        return f"{self._plan.settings.dflash_bind}:{self._plan.settings.dflash_port}"

    def halt(self, *, at_once: bool = False) -> None:
        """Stop the engine and keep its log. `at_once`: kill it."""
        self._process.halt(at_once=at_once)

    def down(self) -> bool:
        """Stop the engine and forget it."""
        return self._process.down()

    def state(self) -> EngineState:
        """Return whether the supervisor runs; if not, the end of the engine that it saved."""
        return self._process.state()

    def memory(self) -> int | None:
        """Return the memory of the supervisor and the engine's processes."""
        return self._process.memory()

    def next_line(self) -> str:
        """Return the beginning: each start has its own log."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return complete lines after `cursor`, in bytes since the start; of a long log its beginning and its end."""
        return self._process.read_log(cursor)

    def _redacted(self, text: str) -> str:
        # the secrets are read from .env with the first text
        return self._deployment.redact(text)

    def _environment(self) -> dict[str, str]:
        """Return this process's environment with the settings of the deployment instead of its own."""
        inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
        ours = engine_environment(self._plan)
        # Python must not import modules from the deployment's directory
        files = {
            SECRETS_FILE: str(self._deployment.env_file),
            KEYS_FILE: str(keys_file(self._deployment)),
        }
        return inherited | ours | files | {"PYTHONSAFEPATH": "1"}

    def _config(self) -> str:
        """Return a fingerprint of everything the engine is started with, to notice changes."""
        engine = self._plan.engine.kind.installed(self._plan.settings)
        parts = (sorted(engine_environment(self._plan).items()), self._deployment.secrets_of_a_start, engine)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


GRACE = 35.0
"""Seconds that a part gets to end its open streams; Caddy's own limit is 30."""


class NativePart:
    """One part of a native deployment in a directory of its own below `.dflash/`."""

    def __init__(self, deployment: Deployment, plan: Plan, name: str) -> None:
        """`name` is that of its directory, of its log, and in messages."""
        self._deployment = deployment
        self._plan = plan
        self._directory = deployment.state / name
        self._process = NativeProcess(self._directory, name, self._redacted, grace=GRACE)

    def down(self) -> bool:
        """Stop it and forget it; return whether it ran."""
        return self._process.down()

    def state(self) -> EngineState:
        """Return whether it runs, and how it ended if not."""
        return self._process.state()

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines after `cursor`."""
        return self._process.read_log(cursor)

    def _inherited(self) -> dict[str, str]:
        """The environment without settings. Only the supervisor reads the secrets, to keep them out of the log."""
        inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
        return inherited | {SECRETS_FILE: str(self._deployment.env_file), "PYTHONSAFEPATH": "1"}

    def _redacted(self, text: str) -> str:
        # the secrets are read from .env with the first text
        return self._deployment.redact(text)


MODULE = "dflash_deploy.serve.router"


class NativeRouter(NativePart):
    """SMG in front of the engines of one deployment, on 127.0.0.1."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan, ROUTER)

    @property
    def address(self) -> str:
        """Its HOST:PORT."""
        return f"{LOOPBACK}:{router_port(self._plan.settings.dflash_port)}"

    def preflight(self) -> None:
        """Raise EngineMissing if SMG is not installed, PortTaken if another process has its private port."""
        if util.find_spec("smg") is None:
            raise EngineMissing(
                f"{self._plan.settings.routed_by} needs a router: SMG is not installed in the "
                f"environment of {sys.executable}",
                hint=f"{install_command('router')} (`extras: [router]` in fleet.yaml), "
                "or run one engine without a router",
            )
        state, port = self.state(), router_port(self._plan.settings.dflash_port)
        if not (state.alive and state.address == self.address) and listener_on(LOOPBACK, port):
            raise PortTaken(
                f"port {port} on {LOOPBACK} is already in use, and the router needs it",
                hint=f"set another {Settings.dflash_port} in .env: the router has the port after it",
            )

    def start(self, narrate: Narrate) -> bool:
        """Start the router; stop one that runs with other settings first."""
        keys = make_router_keys(self._deployment)
        environment = self._environment()
        # it reads its keys only when it starts
        parts = (sorted(self._own().items()), metadata.version("smg"), keys.admin, keys.probe)
        config = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        command = (sys.executable, "-u", "-m", MODULE)
        return self._process.start(
            Invocation(environment, config, self.address, self._deployment.directory, command), narrate
        )

    def _own(self) -> dict[str, str]:
        settings = self._plan.settings
        values: dict[Field[Any], str] = {
            Settings.dflash_bind: LOOPBACK,
            Settings.dflash_port: str(router_port(settings.dflash_port)),
            Settings.max_num_seqs: str(settings.max_num_seqs or ""),
            Settings.max_body_mib: str(settings.max_body_mib),
            Settings.hang_seconds: str(settings.hang_seconds),
        }
        return {field.name: value for field, value in values.items()}

    def _environment(self) -> dict[str, str]:
        return self._inherited() | self._own() | {DIRECTORY: str(router_directory(self._deployment))}


def door_of(deployment: Deployment, settings: Values) -> Door:
    """What the door publishes: several engines with their router, or one engine under a domain."""
    site, plain = published_site(settings), Plain(settings.dflash_bind, settings.dflash_port)
    several = settings.several_engines
    numbers = range(1, settings.replicas + 1)
    here = (f"{LOOPBACK}:{engine_port(settings.dflash_port, number)}" for number in numbers)
    engines = (*here, *settings.router_engines)
    root = str(deployment.path(settings.dflash_acme_root).absolute()) if settings.dflash_acme_root else ""
    return Door(
        site or plain,
        engines if several else (joined(WILDCARDS.get(plain.host, plain.host), plain.port),),
        str(storage_of(deployment)),
        settings.max_body_mib * MIB,
        authority=Authority(settings.dflash_acme_url, root),
        origins=settings.allowed_origins,
        router=f"{LOOPBACK}:{router_port(settings.dflash_port)}" if several else "",
        local=plain if several and site else None,
    )


LISTENS = 60.0
"""Seconds in which Caddy listens or has ended; it needs less than one."""

_PORT = re.compile(r"^(?:\thttps?_port |http://:)(\d+)", re.MULTILINE)
"""A port that Caddy listens on, in a Caddyfile."""


class NativeDoor(NativePart):
    """Caddy in front of the router and the engines of one deployment, on the address of its endpoint."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan, DOOR)

    @property
    def address(self) -> str:
        """Its HOST:PORT: that of the endpoint, or the domain's."""
        settings = self._plan.settings
        if self._site is not None and not settings.several_engines:
            return joined(self._site.host, self._site.https_port)
        return f"{settings.dflash_bind}:{settings.dflash_port}"

    def preflight(self) -> None:
        """Raise EngineMissing if Caddy is not installed, or too old; FileMissing, PreflightRefused for its ports."""
        settings = self._plan.settings
        one = f"{Settings.dflash_domain}={settings.dflash_domain}"
        caddy = find_caddy(needed_by=settings.routed_by if settings.several_engines else one)
        if self._site is None:
            return
        check_root(self._deployment, settings)
        self._check_domain_ports(caddy, self._held())

    def start(self, narrate: Narrate) -> bool:
        """Start Caddy and wait until it listens; stop one first that runs with other settings, or got no certificate.

        Returns whether anything had to be done. Raises PortTaken and PreflightRefused while the earlier one still runs;
        EngineNotReady if Caddy ends or does not listen: none runs then.
        """
        text = caddyfile(door_of(self._deployment, self._plan.settings))
        caddy = find_caddy()
        config = hashlib.sha256(repr((text, caddy)).encode()).hexdigest()[:16]
        refused = refusal(self.read_log().lines)
        if self._process.runs(config) and not refused:
            return False
        file = self._directory / "Caddyfile"
        self._check_ports(caddy, self._held())
        if self._process.state().phase == "running":
            again = "no certificate yet: starting the door again, so that it asks for one now"
            narrate(again if self._process.runs(config) else "settings changed: stopping the running door")
            self._process.halt()
        write_owned(self._deployment, file, text)
        command = tuple(caddy.run(file))
        self._process.start(
            Invocation(self._environment(), config, self.address, self._deployment.directory, command), narrate
        )
        self._wait()
        return True

    def uncertified(self, seconds: float = CERTIFIED) -> str:
        """Wait for a certificate that clients accept; return why there is none after `seconds`, empty if there is.

        It ends early if the authority refuses or cannot be reached, with Caddy's words, and if Caddy ends.
        """
        return awaited_certificate(self._deployment, self._plan.settings, self._ended, self.read_log, seconds)

    @property
    def _site(self) -> Site | None:
        return published_site(self._plan.settings)

    @property
    def _listening(self) -> list[tuple[str, int]]:
        """The addresses that Caddy listens on, as this machine reaches them."""
        settings, places = self._plan.settings, []
        if settings.several_engines:
            places.append((WILDCARDS.get(settings.dflash_bind, settings.dflash_bind), settings.dflash_port))
        if self._site is not None:
            places += [(LOOPBACK, self._site.http_port), (LOOPBACK, self._site.https_port)]
        return places

    def _held(self) -> frozenset[int]:
        """The ports that the running Caddy of this deployment listens on, by its Caddyfile."""
        file = self._directory / "Caddyfile"
        if self.state().phase != "running" or not file.is_file():
            return frozenset()
        return frozenset(map(int, _PORT.findall(read_text(file, lossy=True))))

    def _check_ports(self, caddy: Caddy, held: Set[int]) -> None:
        host, port = self._plan.settings.dflash_bind, self._plan.settings.dflash_port
        if self._plan.settings.several_engines and port not in held and listener_on(host, port):
            raise PortTaken(
                f"port {port} on {host} is already in use",
                hint=f"set another {Settings.dflash_port} in .env, or find the process with `ss -ltnp`",
            )
        if self._site is not None:
            self._check_domain_ports(caddy, held)

    def _check_domain_ports(self, caddy: Caddy, held: Set[int]) -> None:
        for field, port in ports_of(self._plan.settings):
            check_free(field, port, held)
            if not caddy.may_bind and not may_listen_on(EVERYWHERE, port):
                raise PreflightRefused(
                    f"this user may not listen on port {port}, which {Settings.dflash_domain} needs",
                    hint=f"{may_listen_from(port)}, or set another {field} in .env",
                )

    def _wait(self) -> None:
        """Wait until Caddy listens. Raises EngineNotReady, with Caddy's own words, if it ends."""
        deadline = time.monotonic() + LISTENS
        while not self._listens():
            ended = self._ended()
            if ended or time.monotonic() > deadline:
                why = ended or f"it does not listen on {self.address} after {LISTENS:.0f} s"
                self._process.halt()
                raise EngineNotReady(
                    f"Caddy does not start: {why}",
                    hint="read all it says in the lines of `door` in `dflash-deploy logs`",
                )
            time.sleep(0.05)

    def _listens(self) -> bool:
        try:
            for address in self._listening:
                socket.create_connection(address, timeout=1).close()
        except OSError:
            return False
        return True

    def _ended(self) -> str:
        """What Caddy said when it ended; empty while it runs."""
        return "" if self.state().phase == "running" else said_at_end(self.read_log().lines)

    def _environment(self) -> dict[str, str]:
        # Caddy looks for directories of its user there, which a service may not have
        return self._inherited() | {"XDG_DATA_HOME": str(self._directory), "XDG_CONFIG_HOME": str(self._directory)}


def has_several(deployment: Deployment) -> bool:
    """Whether several engines of a deployment run, or ran and were not stopped."""
    return any(deployment.state.glob(f"replicas/*/{RUN_FILE}")) or (deployment.state / ROUTER / RUN_FILE).exists()


class NativeSeveral(Several):
    """The whole of a native deployment with several engines."""

    name: RuntimeName = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self._router = NativeRouter(deployment, plan)
        self._door = NativeDoor(deployment, plan)

    @property
    def router(self) -> NativeRouter:
        """The router."""
        return self._router

    @property
    def door(self) -> NativeDoor:
        """The published door in front of it."""
        return self._door

    @property
    def private_url(self) -> str:
        """The door's address."""
        return f"http://{self._door.address}"

    def preflight(self) -> None:
        """Raise EngineMissing if the engine, the router or Caddy is missing; PortTaken for a private port."""
        self._single.preflight()
        if self._plan.settings.several_engines:
            self._router.preflight()
            self._door.preflight()
            self._check_ports()

    def _check_ports(self) -> None:
        """Raise PortTaken for the private port of an engine of the plan that another process has."""
        for number, member in self._members():
            port = engine_port(self._plan.settings.dflash_port, number)
            planned = number <= self._plan.settings.replicas
            if planned and not member.state().holds(LOOPBACK, port) and listener_on(LOOPBACK, port):
                raise PortTaken(
                    f"port {port} on {LOOPBACK} is already in use, and engine {number} needs it",
                    hint=f"set another {Settings.dflash_port} in .env: the engines have the ports after it",
                )

    def start(self, narrate: Narrate) -> bool:
        """Start the router and the door; stop a single engine of earlier settings, and engines that are too many.

        Raises PortTaken and EngineNotReady if the door cannot start; a router that was started for it is stopped.
        """
        self._deployment.make_state()
        self._single.down()
        for number, member in self._members():
            if number > self._plan.settings.replicas:
                member.down()
        had = self._router.state().phase == "running"
        started = self._router.start(narrate)
        try:
            return self._door.start(narrate) or started
        except DeployError:
            if not had:
                self._router.down()
            raise

    def halt(self, *, at_once: bool = False) -> None:
        """Stop all engines, and keep their logs. `at_once`: kill them."""
        self._single.halt(at_once=at_once)
        for _, member in self._members():
            member.halt(at_once=at_once)

    def next_line(self) -> str:
        """Return the beginning of all logs: each start has its own."""
        return ""

    def _stop_all(self) -> bool:
        ran = [self._door.down(), self._router.down(), self._single.down()]
        return any([*ran, *(member.down() for _, member in self._members())])

    def _runtime(self, deployment: Deployment, plan: Plan) -> NativeRuntime:
        return NativeRuntime(deployment, plan)

    def _numbers(self) -> set[int]:
        return {int(place.name) for place in self._deployment.state.glob("replicas/*") if place.name.isdecimal()}
