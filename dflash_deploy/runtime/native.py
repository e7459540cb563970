"""The engine as a supervised process, installed in the environment of this Python."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.deployment.keys_file import keys_file, write_keys
from dflash_deploy.errors import EngineMissing, EngineNotReady
from dflash_deploy.intake.documents import EngineEnd
from dflash_deploy.intake.state import Report, log_damage, read_state, remove_state
from dflash_deploy.plan import Plan, engine_environment
from dflash_deploy.runtime.log_file import read_page
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import SUPERVISOR, Supervised, find_supervised, recorded
from dflash_deploy.serve.gateway.keyring import KEYS_FILE
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment

STOP_GRACE = 45.0
"""Seconds the engine gets to stop before it is killed."""


class NativeRuntime:
    """One deployment as a process. Its supervisor redacts the log and saves the exit code."""

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan, report: Report = log_damage) -> None:
        """`report` takes one line for each damaged state file."""
        self._deployment = deployment
        self._plan = plan
        self._report = report

    @property
    def _log(self) -> Path:
        return self._deployment.state / "engine.log"

    @property
    def _run_file(self) -> Path:
        return self._deployment.state / "run.json"

    @property
    def _exit_file(self) -> Path:
        return self._deployment.state / "exit.json"

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
                hint=f"{how}, or use Docker with `init --runtime compose`",
            )
        if engine.cpu != self._plan.engine.cpu:
            build = "the CPU build" if engine.cpu else "a build for GPUs"
            raise EngineMissing(
                f"profile {self._plan.profile.name} needs another {kind.title}: {engine.version} is {build}",
                hint="install dflash-deploy with that build into a new environment: docs/how-to/install.md",
            )

    def start(self, narrate: Narrate) -> bool:
        """Start the engine; stop one that runs with other settings first."""
        config = self._config()
        # a running engine reads them again
        write_keys(self._deployment)
        run = self._run()
        if run is not None and run.process.alive():
            if run.config == config:
                return False
            narrate("settings changed: stopping the running engine")
            run.process.end(grace=STOP_GRACE)
        self._deployment.make_state()
        if self._log.exists() and self._log.stat().st_size:
            self._log.replace(self._log.with_suffix(".log.1"))
        remove_state(self._exit_file, report=self._report)
        self._spawn(config)
        return True

    def halt(self) -> None:
        """Stop the engine and keep its log."""
        run = self._run()
        if run is not None:
            run.process.end(grace=STOP_GRACE)

    def down(self) -> bool:
        """Stop the engine and forget it."""
        run = self._run()
        there = run is not None and run.process.alive()
        self.halt()
        remove_state(self._run_file, report=self._report)
        remove_state(self._exit_file, report=self._report)
        return there

    def state(self) -> EngineState:
        """Return whether the supervisor runs; if not, the end of the engine that it saved."""
        run = self._run()
        if run is None:
            return EngineState("absent")
        identity = f"process {run.process.pid}"
        if run.process.alive():
            return EngineState("running", identity=identity, address=run.address)
        end = read_state(self._exit_file, EngineEnd, report=self._report)
        if end is None:
            # the supervisor was killed too, the machine was rebooted, or the file was damaged
            return EngineState("exited", identity=identity)
        return EngineState("exited", exit_code=end.exit_code, identity=identity, unasked=not end.asked)

    def memory(self) -> int | None:
        """Return the memory of the supervisor and the engine's processes."""
        run = self._run()
        return run.process.memory() if run is not None and run.process.alive() else None

    def next_line(self) -> str:
        """Return the beginning: each start has its own log."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return complete lines after `cursor`, an offset in bytes; of a long log its beginning and its end."""
        return read_page(self._log, cursor, self._deployment.redact)

    def _environment(self) -> dict[str, str]:
        """Return this process's environment with the settings of the deployment instead of its own."""
        inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
        ours = engine_environment(self._plan)
        # Python must not import modules from the deployment's directory
        files = {SECRETS_FILE: str(self._deployment.env_file), KEYS_FILE: str(keys_file(self._deployment))}
        return inherited | ours | files | {"PYTHONSAFEPATH": "1"}

    def _config(self) -> str:
        """Return a fingerprint of everything the engine is started with, to notice changes."""
        engine = self._plan.engine.kind.installed(self._plan.settings)
        parts = (sorted(engine_environment(self._plan).items()), self._deployment.secrets_of_a_start, engine)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _spawn(self, config: str) -> None:
        """Start the supervisor and wait until it has written run.json, so that no process is lost."""
        address = f"{self._plan.settings.dflash_bind}:{self._plan.settings.dflash_port}"
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        with os.fdopen(log) as file:
            process = subprocess.Popen(
                [sys.executable, "-m", SUPERVISOR, str(self._deployment.state), config, address],
                env=self._environment(),
                cwd=self._deployment.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # errors of the supervisor itself
                stderr=file,
                # the terminal's Ctrl-C does not reach it, and its process group can be killed with it
                start_new_session=True,
            )
        try:
            while (run := recorded(self._run_file)) is None or run.process.pid != process.pid:
                if process.poll() is not None:
                    raise EngineNotReady(
                        f"the engine's supervisor ended with code {process.returncode}",
                        hint="read why with `dflash-deploy logs`",
                    )
                time.sleep(0.02)
        finally:
            # it outlives this command on purpose: prevent subprocess's warning that it still runs
            process.returncode = process.returncode or 0

    def _run(self) -> Supervised | None:
        """Return the engine that was started last: as recorded, or as found among the processes.

        A command that was killed may have started one whose supervisor has not written run.json yet.
        """
        run = recorded(self._run_file, self._report)
        if run is not None and run.process.alive():
            return run
        return find_supervised(self._deployment.state) or run
