"""The published door as a supervised process of the native runtime: Caddy, in front of several engines or of one."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Set
from typing import TYPE_CHECKING

from dflash_deploy.deployment.owned_files import write_owned
from dflash_deploy.door import Caddy, caddyfile, find_caddy, refusal
from dflash_deploy.door.site import published_site
from dflash_deploy.errors import EngineNotReady, PortTaken, PreflightRefused
from dflash_deploy.host import listener_on, may_listen_on
from dflash_deploy.intake import read_text
from dflash_deploy.plan.replicas import LOOPBACK
from dflash_deploy.runtime.certificate import (
    CERTIFIED,
    EVERYWHERE,
    awaited_certificate,
    check_free,
    check_root,
    ports_of,
    said_at_end,
)
from dflash_deploy.runtime.domain import WILDCARDS, joined, may_listen_from
from dflash_deploy.runtime.door_inputs import door_of
from dflash_deploy.runtime.native_part import NativePart
from dflash_deploy.runtime.native_process import Invocation
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.supervised import DOOR
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.door import Site
    from dflash_deploy.plan import Plan

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
