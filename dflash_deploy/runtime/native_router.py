"""The router of several engines as a supervised process of the native runtime."""

from __future__ import annotations

import hashlib
import sys
from importlib import metadata, util
from typing import TYPE_CHECKING, Any

from dflash_deploy.deployment.router_files import make_router_keys, router_directory
from dflash_deploy.errors import EngineMissing, PortTaken
from dflash_deploy.host import listener_on
from dflash_deploy.plan.replicas import LOOPBACK, router_port
from dflash_deploy.runtime.native_part import NativePart
from dflash_deploy.runtime.native_process import Invocation
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.supervised import ROUTER
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.router.files import DIRECTORY
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.serve.field import Field

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
