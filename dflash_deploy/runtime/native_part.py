"""What runs natively beside the engines as a supervised process: the router, and the published door."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.runtime.native_process import NativeProcess
from dflash_deploy.runtime.protocol import EngineState, LogPage
from dflash_deploy.serve.secrets import SECRETS_FILE

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan

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
