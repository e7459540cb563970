"""The engine as a supervised process, installed in the environment of this Python."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.errors import EngineMissing, EngineNotReady
from dflash_deploy.plan import Plan, engine_environment
from dflash_deploy.runtime.process import ProcessId
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate, last_state
from dflash_deploy.serve.engines.installed import installed_vllm
from dflash_deploy.serve.secrets import SECRETS_FILE

SUPERVISOR = "dflash_deploy.runtime.supervisor"

STOP_GRACE = 45.0
"""Seconds the engine gets to stop before it is killed."""


@dataclass(frozen=True)
class _Run:
    """The contents of `.dflash/run.json`: the engine that was started last."""

    process: ProcessId
    config: str
    address: str


class NativeRuntime:
    """One deployment as a process. Its supervisor redacts the log and saves the exit code."""

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan

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
        """Raise EngineMissing if this Python's environment has no vLLM of the right build."""
        extra = self._plan.engine.native
        engine = installed_vllm()
        if engine is None:
            raise EngineMissing(
                f"vLLM is not installed in the environment of {sys.executable}",
                hint=f"run `pip install 'dflash-deploy[{extra}]'`, or use Docker with `init --runtime compose`",
            )
        if engine.cpu != self._plan.engine.cpu:
            build = "the CPU build" if engine.cpu else "a build for GPUs"
            raise EngineMissing(
                f"profile {self._plan.profile.name} needs another vLLM: {engine.version} is {build}",
                hint=f"run `pip install 'dflash-deploy[{extra}]'` in a new environment",
            )

    def start(self, narrate: Narrate) -> bool:
        """Start the engine; stop one that runs with other settings first."""
        config = self._config()
        run = self._run()
        if run is not None and run.process.alive():
            if run.config == config:
                return False
            narrate("settings changed: stopping the running engine")
            run.process.end(grace=STOP_GRACE)
        self._deployment.make_state()
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))
        self._exit_file.unlink(missing_ok=True)
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
        self._run_file.unlink(missing_ok=True)
        self._exit_file.unlink(missing_ok=True)
        return there

    def state(self) -> EngineState:
        """Return whether the supervisor runs; if not, the end of the engine that it saved."""
        run = self._run()
        if run is None:
            return EngineState("absent")
        identity = f"process {run.process.pid}"
        if run.process.alive():
            return EngineState("running", identity=identity, address=run.address)
        try:
            end = json.loads(self._exit_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # the supervisor was killed too, or the machine was rebooted
            return EngineState("exited", identity=identity)
        # a file of an older release does not say whether the end was requested
        unasked = not end.get("asked", True)
        return EngineState("exited", exit_code=int(end["exit_code"]), identity=identity, unasked=unasked)

    def memory(self) -> int | None:
        """Return the memory of the supervisor and the engine's processes."""
        run = self._run()
        return run.process.memory() if run is not None and run.process.alive() else None

    def next_line(self) -> str:
        """Return the beginning: each start has its own log."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return complete lines after `cursor`, an offset in bytes. The supervisor has redacted them."""
        start = int(cursor or 0)
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                content = file.read()
        except FileNotFoundError:
            return LogPage((), cursor)
        whole = content[: content.rfind(b"\n") + 1]
        lines = self._deployment.redact(whole.decode("utf-8", "replace")).split("\n")[:-1]
        return LogPage(tuple(map(last_state, lines)), str(start + len(whole)))

    def _environment(self) -> dict[str, str]:
        """Return this process's environment with the settings of the deployment instead of its own."""
        inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
        ours = engine_environment(self._plan)
        # Python must not import modules from the deployment's directory
        return inherited | ours | {SECRETS_FILE: str(self._deployment.env_file), "PYTHONSAFEPATH": "1"}

    def _config(self) -> str:
        """Return a fingerprint of everything the engine is started with, to notice changes."""
        engine = installed_vllm()
        secrets = sorted((name, secret.reveal()) for name, secret in self._deployment.secrets.items())
        parts = (sorted(engine_environment(self._plan).items()), secrets, engine)
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
            while (run := self._run()) is None or run.process.pid != process.pid:
                if process.poll() is not None:
                    raise EngineNotReady(
                        f"the engine's supervisor ended with code {process.returncode}",
                        hint="read why with `dflash-deploy logs`",
                    )
                time.sleep(0.02)
        finally:
            # it outlives this command on purpose: prevent subprocess's warning that it still runs
            process.returncode = process.returncode or 0

    def _run(self) -> _Run | None:
        try:
            said = json.loads(self._run_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return _Run(ProcessId(said["pid"], said["started"]), said["config"], said["address"])
