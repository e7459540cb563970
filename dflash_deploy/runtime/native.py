"""The engine as a supervised process of this machine, installed in the environment of this Python."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.keys import keys_file, write_keys
from dflash_deploy.errors import DOCS, EngineMissing
from dflash_deploy.intake.documents import Report, log_damage
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.native_process import Invocation, NativeProcess
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import RuntimeName, Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment


STOP_GRACE = 45.0  # seconds the engine gets to stop before it is killed


class NativeRuntime(NativeProcess):
    """The engine of one deployment as a process. Its supervisor redacts the log and saves the exit code."""

    name: RuntimeName = "native"

    def __init__(self, deployment: Deployment, plan: Plan, report: Report = log_damage) -> None:
        """`report` takes one line for each damaged state file."""
        super().__init__(deployment.state, deployment.redact, grace=STOP_GRACE, report=report)
        self._deployment = deployment
        self._plan = plan

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
        """Start the engine; stop one that runs with other settings first. Return whether anything had to be done."""
        address = f"{self._plan.settings.dflash_bind}:{self._plan.settings.dflash_port}"
        # a running engine reads them again
        write_keys(self._deployment)
        self._deployment.make_state()
        how = Invocation(self._environment(), self._config(), address, self._deployment.directory)
        return self.launch(how, narrate)

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
