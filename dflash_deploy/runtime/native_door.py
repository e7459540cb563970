"""The published door of several engines as a supervised process of the native runtime: Caddy, on their address."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.door import Door, Plain, caddyfile, find_caddy
from dflash_deploy.errors import EngineNotReady, PortTaken
from dflash_deploy.host import listener_on
from dflash_deploy.plan.replicas import LOOPBACK, engine_port, router_port
from dflash_deploy.runtime.native_process import Invocation, NativeProcess
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import DOOR
from dflash_deploy.serve.gateway.body_limit import MIB
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.serve.settings import Settings as Values

GRACE = 35.0
"""Seconds Caddy gets to end its open streams; its own limit is 30."""

LISTENS = 60.0
"""Seconds in which Caddy listens or has ended; it needs less than one."""

_ERROR = "Error: "
"""How the line begins in which Caddy says why it ends."""


class NativeDoor:
    """Caddy in front of the router and the engines of one deployment, on the address of its endpoint."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self._directory = deployment.state / DOOR
        self._process = NativeProcess(self._directory, DOOR, self._redacted, grace=GRACE)

    @property
    def address(self) -> str:
        """Its HOST:PORT."""
        return _joined(self._plan.settings.dflash_bind, self._plan.settings.dflash_port)

    def preflight(self) -> None:
        """Raise EngineMissing if Caddy is not installed, or too old."""
        find_caddy(needed_by=f"{Settings.replicas}={self._plan.settings.replicas}")

    def start(self, narrate: Narrate) -> bool:
        """Start Caddy and wait until it listens; stop one that runs with other settings first.

        Returns whether anything had to be done. Raises PortTaken, EngineNotReady if Caddy ends or does not listen; it
        does not run then.
        """
        text = caddyfile(door_of(self._plan.settings, str(self._directory / "data")))
        caddy = find_caddy()
        config = hashlib.sha256(repr((text, caddy)).encode()).hexdigest()[:16]
        if self._process.runs(config):
            return False
        self._deployment.make_state()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        file = self._directory / "Caddyfile"
        if self._process.state().phase == "running":
            narrate("settings changed: stopping the running door")
            self._process.halt()
        self._check_port()
        write_if_changed(file, text, mode=PRIVATE)
        command = tuple(caddy.run(file))
        self._process.start(
            Invocation(self._environment(), config, self.address, self._deployment.directory, command), narrate
        )
        self._wait()
        return True

    def down(self) -> bool:
        """Stop Caddy and forget it; return whether it ran."""
        return self._process.down()

    def state(self) -> EngineState:
        """Return whether it runs, and how it ended if not."""
        return self._process.state()

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines after `cursor`."""
        return self._process.read_log(cursor)

    def _check_port(self) -> None:
        host, port = self._plan.settings.dflash_bind, self._plan.settings.dflash_port
        if listener_on(host, port):
            raise PortTaken(
                f"port {port} on {host} is already in use",
                hint=f"set another {Settings.dflash_port} in .env, or find the process with `ss -ltnp`",
            )

    def _wait(self) -> None:
        """Wait until Caddy listens. Raises EngineNotReady, with Caddy's own words, if it ends."""
        deadline = time.monotonic() + LISTENS
        while not self._listens():
            ended = self._process.state().phase != "running"
            if ended or time.monotonic() > deadline:
                why = self._why() if ended else f"it does not listen on {self.address} after {LISTENS:.0f} s"
                self._process.halt()
                raise EngineNotReady(
                    f"Caddy does not start: {why}",
                    hint="read all it says in the lines of `door` in `dflash-deploy logs`",
                )
            time.sleep(0.05)

    def _listens(self) -> bool:
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self._plan.settings.dflash_bind)  # noqa: S104
        try:
            address = (host or self._plan.settings.dflash_bind, self._plan.settings.dflash_port)
            with socket.create_connection(address, timeout=1):
                return True
        except OSError:
            return False

    def _why(self) -> str:
        lines = [line for line in self.read_log().lines if line.strip()]
        said = next((line for line in reversed(lines) if line.startswith(_ERROR)), lines[-1] if lines else "")
        return said.removeprefix(_ERROR) or "it has ended without a word"

    def _environment(self) -> dict[str, str]:
        """Only its supervisor reads the secrets, to keep them out of the log."""
        inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
        # Caddy looks for directories of its user there, which a service may not have
        place = {"XDG_DATA_HOME": str(self._directory), "XDG_CONFIG_HOME": str(self._directory)}
        return inherited | place | {SECRETS_FILE: str(self._deployment.env_file), "PYTHONSAFEPATH": "1"}

    def _redacted(self, text: str) -> str:
        return self._deployment.redact(text)


def door_of(settings: Values, storage: str) -> Door:
    """What the door of several engines publishes, and where it sends it."""
    numbers = range(1, settings.replicas + 1)
    return Door(
        Plain(settings.dflash_bind, settings.dflash_port),
        tuple(f"{LOOPBACK}:{engine_port(settings.dflash_port, number)}" for number in numbers),
        storage,
        settings.max_body_mib * MIB,
        preflights=settings.allows_origins,
        router=f"{LOOPBACK}:{router_port(settings.dflash_port)}",
    )


def _joined(host: str, port: int) -> str:
    return f"{host}:{port}"
