"""The engine as a supervised process of this machine, and the published door in front of it under a domain.

The engine is installed in the environment of this Python. The settings give what the door, Caddy, serves and where it
sends it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.front import storage_of, write_owned
from dflash_deploy.deployment.keys import keys_file, limits_directory, write_keys
from dflash_deploy.door.caddy import Caddy, find_caddy, refusal
from dflash_deploy.door.caddyfile import Door, caddyfile
from dflash_deploy.door.site import Authority, published_site
from dflash_deploy.errors import DOCS, EngineMissing, EngineNotReady, PreflightRefused
from dflash_deploy.host.ports import may_listen_on
from dflash_deploy.intake.documents import Report, log_damage
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.domain import (
    CERTIFIED,
    EVERYWHERE,
    LOOPBACK,
    WILDCARDS,
    awaited_certificate,
    check_free,
    check_root,
    joined,
    may_listen_from,
    ports_of,
    said_at_end,
)
from dflash_deploy.runtime.native_process import DOOR, Invocation, NativeProcess
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.serve.gateway.asgi import MIB
from dflash_deploy.serve.gateway.keys import KEYS_FILE, LIMITS_DIRECTORY
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import RuntimeName, Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.door.site import Site
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
        self._process = NativeProcess(deployment.state, "engine", self._redacted, grace=STOP_GRACE, report=report)

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

    def pids(self) -> tuple[int, ...]:
        """Return the supervisor and the engine's processes."""
        return self._process.pids()

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
            LIMITS_DIRECTORY: str(limits_directory(self._deployment)),
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


def door_of(deployment: Deployment, settings: Values) -> Door:
    """What the door publishes: the engine under the domain."""
    host, port, site = settings.dflash_bind, settings.dflash_port, published_site(settings)
    assert site is not None  # noqa: S101 - a door is started under a domain only
    root = str(deployment.path(settings.dflash_acme_root).absolute()) if settings.dflash_acme_root else ""
    return Door(
        site,
        joined(WILDCARDS.get(host, host), port),
        str(storage_of(deployment)),
        settings.max_body_mib * MIB,
        authority=Authority(settings.dflash_acme_url, root),
        origins=settings.allowed_origins,
    )


LISTENS = 60.0
"""Seconds in which Caddy listens or has ended; it needs less than one."""

_PORT = re.compile(r"^(?:\thttps?_port |http://:)(\d+)", re.MULTILINE)
"""A port that Caddy listens on, in a Caddyfile."""


class NativeDoor(NativePart):
    """Caddy in front of the engine of a deployment under a domain."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan, DOOR)

    @property
    def address(self) -> str:
        """Its HOST:PORT: the domain's."""
        return joined(self._site.host, self._site.https_port) if self._site is not None else ""

    def preflight(self) -> None:
        """Raise EngineMissing if Caddy is not installed, or too old; FileMissing, PreflightRefused for its ports."""
        settings = self._plan.settings
        caddy = find_caddy(needed_by=f"{Settings.dflash_domain}={settings.dflash_domain}")
        check_root(self._deployment, settings)
        self._check_ports(caddy, self._held())

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
        site = self._site
        return [(LOOPBACK, port) for port in (site.http_port, site.https_port)] if site is not None else []

    def _held(self) -> frozenset[int]:
        """The ports that the running Caddy of this deployment listens on, by its Caddyfile."""
        file = self._directory / "Caddyfile"
        if self.state().phase != "running" or not file.is_file():
            return frozenset()
        return frozenset(map(int, _PORT.findall(read_text(file, lossy=True))))

    def _check_ports(self, caddy: Caddy, held: Set[int]) -> None:
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
