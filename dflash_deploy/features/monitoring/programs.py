"""Prometheus and Alertmanager of a deployment: programs of this machine, each supervised and private on 127.0.0.1."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.errors import NotPossible, PortTaken, PreflightRefused
from dflash_deploy.features.monitoring import FOLDER
from dflash_deploy.host.ports import listener_on
from dflash_deploy.runtime.native_process import ALERTMANAGER, PROMETHEUS, Invocation, NativeProcess
from dflash_deploy.runtime.protocol import EngineState, Narrate
from dflash_deploy.serve.secrets import SECRETS_FILE

HOST = "127.0.0.1"
GRACE = 60.0
"""Seconds that a program gets to write its data and end."""

RETENTION = ("40d", "4GB")
"""How long Prometheus keeps data, and the most that it keeps; whichever comes first."""


@dataclass(frozen=True)
class MonitoringProgram:
    """A program of this machine. `names` are those that packages give it, `package` is Debian's."""

    state: str
    title: str
    names: tuple[str, ...]
    package: str

    def path(self) -> str:
        """Where it is. Raises PreflightRefused if it is not installed."""
        found = next(filter(None, map(shutil.which, self.names)), None)
        if found is None:
            raise PreflightRefused(
                f"{self.title} is not installed: `{self.names[0]}` is not on the PATH",
                hint=f"`apt install {self.package}`, or use your own with `dflash-deploy monitor export`",
            )
        return found


PROMETHEUS_PROGRAM = MonitoringProgram(PROMETHEUS, "Prometheus", ("prometheus",), "prometheus")
ALERTMANAGER_PROGRAM = MonitoringProgram(
    ALERTMANAGER, "Alertmanager", ("prometheus-alertmanager", "alertmanager"), "prometheus-alertmanager"
)
PROGRAMS = (PROMETHEUS_PROGRAM, ALERTMANAGER_PROGRAM)


def monitoring_folder(deployment: Deployment) -> Path:
    """The directory with configuration and data: `.dflash/monitor/`."""
    return deployment.state / FOLDER


@dataclass(frozen=True)
class MonitoringProcess:
    """One of the programs, for one deployment."""

    deployment: Deployment
    program: MonitoringProgram

    def start(self, port: int, files: Mapping[str, str], narrate: Narrate) -> bool:
        """Write its files and start it; return whether it was started. It restarts if anything changed.

        Raises PreflightRefused if it is not installed, PortTaken, and EngineNotReady if it cannot be started.
        """
        path, folder = self.program.path(), monitoring_folder(self.deployment)
        command = (path, *_options(self.program, folder, port))
        config = hashlib.sha256(repr((command, sorted(files.items()))).encode()).hexdigest()[:16]
        address = f"{HOST}:{port}"
        self.check_port(port)
        for name, text in files.items():
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # the key of Prometheus and the address of a receiver are among them
            write_if_changed(folder / name, text, mode=PRIVATE)
        launch = Invocation(_environment(self.deployment), config, address, folder, command)
        return self._process.start(launch, narrate)

    def check_port(self, port: int) -> None:
        """Raise PortTaken if another program listens on a port that this one is to have."""
        if self.state().address != f"{HOST}:{port}" and listener_on(HOST, port):
            raise PortTaken(
                f"port {port} for {self.program.title} is taken", hint="choose another one with --port or --alert-port"
            )

    def state(self) -> EngineState:
        """Whether it runs, and its address."""
        return self._process.state()

    def down(self) -> bool:
        """Stop it; return whether it ran. Its data stays."""
        return self._process.down()

    def remove(self, names: Collection[str]) -> None:
        """Remove files of an earlier configuration."""
        for name in names:
            (monitoring_folder(self.deployment) / name).unlink(missing_ok=True)

    @property
    def log(self) -> Path:
        """Its log."""
        return self._process.log

    def last_lines(self, count: int = 3) -> str:
        """The end of its log."""
        return "\n".join(self._process.read_log().lines[-count:])

    @property
    def _process(self) -> NativeProcess:
        place = monitoring_folder(self.deployment) / self.program.state
        return NativeProcess(place, self.program.title, self.deployment.redact, grace=GRACE)


def address_of(deployment: Deployment, program: MonitoringProgram) -> str:
    """HOST:PORT of a program that runs for a deployment; empty if it does not run."""
    if not (monitoring_folder(deployment) / program.state).is_dir():
        return ""
    state = MonitoringProcess(deployment, program).state()
    return state.address if state.alive else ""


def alertmanager_of(deployment: Deployment) -> str:
    """HOST:PORT of the Alertmanager that runs for a deployment. Raises NotPossible if none does."""
    address = address_of(deployment, ALERTMANAGER_PROGRAM)
    if not address:
        why = "`monitor up` has no receiver" if address_of(deployment, PROMETHEUS_PROGRAM) else "nothing is monitored"
        raise NotPossible(
            f"Alertmanager does not run, so no alert is sent: {why}",
            hint="name a receiver: `dflash-deploy monitor up --webhook URL`, or --ntfy or --mail",
        )
    return address


def _options(program: MonitoringProgram, folder: Path, port: int) -> tuple[str, ...]:
    listen = f"--web.listen-address={HOST}:{port}"
    data = folder / program.state / "data"
    if program is PROMETHEUS_PROGRAM:
        time, size = RETENTION
        return (
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            f"--storage.tsdb.retention.time={time}",
            f"--storage.tsdb.retention.size={size}",
            listen,
        )
    # without an address for a cluster it opens no further port
    return (
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={data}",
        listen,
        "--cluster.listen-address=",
    )


def _environment(deployment: Deployment) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
    return inherited | {SECRETS_FILE: str(deployment.env_file), "PYTHONSAFEPATH": "1"}
