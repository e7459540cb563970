"""The engine as a container: Compose starts and removes it, Docker's API returns its state and log.

The published door is a container with Caddy in front of an engine under a domain.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from docker.errors import DockerException, NotFound

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.compose import render
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import INNER_PORT, SERVICE
from dflash_deploy.errors import EngineMissing, EngineNotReady, FileRefused, SettingsRefused
from dflash_deploy.host.ask import container_engine, elsewhere
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.docker import docker_client, first_line, read_container_log
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate, Phase, last_state
from dflash_deploy.serve.settings import RuntimeName, Settings

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

log = logging.getLogger("dflash_deploy")


STOP_GRACE = 45  # seconds a container gets to stop before it is killed; the same as in compose/base.yaml
_NAMES_A_FILE = frozenset({"COMPOSE_FILE", "COMPOSE_ENV_FILES", "COMPOSE_PROJECT_NAME"})


def compose_command(deployment: Deployment, *command: str) -> list[str]:
    """Return the argument list of one Compose call.

    Every call names project, files and `.env`: without one of them, Compose would use another project or file.
    """
    files = [deployment.compose_file]
    if deployment.override_file.is_file():
        files.append(deployment.override_file)
    return [
        "docker",
        "compose",
        "--project-directory",
        str(deployment.directory),
        "--project-name",
        deployment.project_name,
        "--env-file",
        str(deployment.settings or deployment.env_file),
        *(part for file in files for part in ("-f", str(file))),
        *command,
    ]


def compose_environment(environment: Mapping[str, str], written: Collection[str]) -> dict[str, str]:
    """Return this process's environment without settings and without the names in `.env` (`written`).

    In Compose, an exported variable overrides the same line of `.env`.
    """
    return {name: value for name, value in environment.items() if name not in {*all_setting_names(), *written}}


def run_compose(deployment: Deployment, *command: str, narrate: Narrate | None = None) -> None:
    """Run Compose with the files of a deployment. Raises EngineNotReady with Compose's message."""
    environment = compose_environment(os.environ, deployment.values)
    run_command(
        deployment, command[0], compose_command(deployment, *command), deployment.directory, environment, narrate
    )


def remove_project(deployment: Deployment) -> None:
    """Remove the containers and networks of a deployment. The cache volume and the weights stay.

    Damaged files do not prevent it: Compose finds both by the project's name too. Raises EngineNotReady.
    """
    down = ("down", "--timeout", str(STOP_GRACE))
    try:
        # compose.yaml may have been written with other settings since
        run_compose(deployment, *down, "--remove-orphans")
    except (EngineNotReady, SettingsRefused, FileRefused) as problem:
        by_name = ["docker", "compose", "--project-name", deployment.project_name, *down]
        try:
            # a directory without a Compose file, as are those above it
            run_command(deployment, "down", by_name, Path("/"), compose_environment(os.environ, _NAMES_A_FILE))
        except EngineNotReady:
            raise problem from None


def run_command(
    deployment: Deployment,
    verb: str,
    command: list[str],
    place: Path,
    environment: Mapping[str, str],
    narrate: Narrate | None = None,
) -> None:
    """Run a call of Compose in a place and pass on its lines as they come.

    Raises EngineNotReady with the last ones; `verb` names the call.
    """
    tail: deque[str] = deque(maxlen=20)
    redact = deployment.redact
    log.debug("runs %s", shlex.join(command))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=place,
        env=environment,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - because of stdout=PIPE
        for line in process.stdout:
            if text := redact(line.strip()):
                tail.append(text)
                if narrate:
                    narrate(text)
    if process.returncode != 0:
        raise EngineNotReady(
            f"docker compose {verb} failed: {tail[-1] if tail else 'no output'}",
            hint="read the lines above; check the file with `docker compose config` in the deployment directory",
            detail="\n".join(tail),
        )


_PHASES: Mapping[str, Phase] = {
    "created": "exited",
    "running": "running",
    "paused": "paused",
    "restarting": "restarting",
    "exited": "exited",
    "dead": "exited",
}


class ComposeRuntime:
    """One service of a deployment under Docker Compose: its engine, or the door."""

    name: RuntimeName = "compose"

    def __init__(self, deployment: Deployment, plan: Plan, service: str = SERVICE) -> None:
        self._deployment = deployment
        self._plan = plan
        self._service = service

    def preflight(self) -> None:
        """Raise EngineMissing if Docker or its Compose plugin does not respond, or is on another machine."""
        try:
            engine = container_engine()
        except EngineMissing as missing:
            kind = self._plan.engine.kind
            usable = self._plan.engine.native and kind.installed()
            native = f", or use the installed {kind.title}: `dflash-deploy init --force --runtime native`"
            raise EngineMissing(missing.message, hint=f"{missing.hint}{native if usable else ''}") from None
        if (other := elsewhere(engine.host)) is not None:
            raise EngineMissing(other[0], hint=other[1])
        if engine.compose is None:
            raise EngineMissing(
                f"Docker {engine.version} responds, but `docker compose` does not",
                hint="install the Compose plugin (docker-compose-plugin, or docker-compose-v2)",
            )

    def start(self, narrate: Narrate) -> bool:
        """Write compose.yaml and run `docker compose up -d`. Raises EngineNotReady with Compose's message."""
        render(self._deployment, self._plan)
        before = self.state()
        if before.phase == "paused":
            self._compose("unpause", *self._only, narrate=narrate)
        # older releases of Compose do not notice that a container is disconnected from its network
        recreate = () if before.connected else ("--force-recreate",)
        self._compose("up", "--detach", "--remove-orphans", *recreate, narrate=narrate)
        after = self.state()
        return before.identity != after.identity or before.phase != "running"

    def build(self, narrate: Narrate) -> None:
        """Write compose.yaml and run `docker compose build`. Raises EngineNotReady with Compose's message."""
        self.preflight()
        render(self._deployment, self._plan)
        self._compose("build", narrate=narrate)

    def halt(self, *, at_once: bool = False) -> None:
        """Stop the container, which also ends its restarts, and keep it for its log. `at_once`: kill it."""
        self._compose("stop", "--timeout", "0" if at_once else str(STOP_GRACE), *self._only)

    def down(self) -> bool:
        """Remove the container and the network. The cache volume and the weights stay."""
        there = self._container() is not None
        remove_project(self._deployment)
        return there

    @property
    def _only(self) -> tuple[str, ...]:
        """The service, if the file has others beside it that are not the user's."""
        return (self._service,) if self._plan.settings.published else ()

    def state(self) -> EngineState:
        """Return the container's state from Docker's API."""
        container = self._container()
        if container is None:
            return EngineState("absent")
        state = container.attrs["State"]
        phase = _PHASES.get(state["Status"], "exited")
        return EngineState(
            phase,
            exit_code=None if phase in {"running", "paused"} else state["ExitCode"],
            restarts=container.attrs["RestartCount"],
            out_of_memory=state["OOMKilled"],
            identity=f"{container.short_id} {state['StartedAt']}",
            address=_address(container.attrs),
            connected=phase != "running" or bool(container.attrs["NetworkSettings"]["Networks"]),
        )

    def memory(self) -> int | None:
        """Return the container's memory as `docker stats` shows it: without the page cache that can be dropped."""
        container = self._container()
        if container is None or container.status != "running":
            return None
        try:
            stats = cast("dict[str, Any]", container.stats(stream=False, one_shot=True))
        except (DockerException, OSError):
            # the container was just removed, or Docker is too old to report it
            return None
        held = stats.get("memory_stats") or {}
        used, files = held.get("usage"), held.get("stats") or {}
        # cgroup v2, and v1
        return None if used is None else int(used) - files.get("inactive_file", files.get("total_inactive_file", 0))

    def next_line(self) -> str:
        """Return the end of the log: a restarted container continues the same log."""
        return self.read_log().cursor

    def read_log(self, cursor: str = "") -> LogPage:
        """Return lines newer than `cursor`, a time stamp: Docker writes them with nanoseconds and a fixed width."""
        container = self._container()
        if container is None:
            return LogPage((), cursor)
        since = int(_seconds(cursor)) if cursor else None
        with _answering():
            tty = bool(container.attrs["Config"].get("Tty"))
            raw = read_container_log(self._client.api, str(container.id), since=since, tty=tty)
        fresh = [(stamp, text) for stamp, text in parse_stamped(raw.decode("utf-8", "replace")) if stamp > cursor]
        redact = self._deployment.redact
        return LogPage(tuple(redact(text) for _, text in fresh), fresh[-1][0] if fresh else cursor)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return docker_client()

    def _container(self) -> Container | None:
        with _answering():
            return find_container(self._client, self._deployment, self._service)

    def _compose(self, *command: str, narrate: Narrate | None = None) -> None:
        """Run Compose with the files of the deployment."""
        run_compose(self._deployment, *command, narrate=narrate)


def find_container(client: docker.DockerClient, deployment: Deployment, service: str = "") -> Container | None:
    """Return a service's container; of any service if it is empty. `None` if there is none. Raises DockerException."""
    labels = [f"com.docker.compose.project={deployment.project_name}"]
    if service:
        labels.append(f"com.docker.compose.service={service}")
    # a container that is removed between listing and inspecting is treated as gone
    found = client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
    return found[0] if found else None


@contextmanager
def _answering() -> Iterator[None]:
    """Turn errors of Docker's API into EngineNotReady: Docker responded when this command began."""
    try:
        yield
    except NotFound:
        raise EngineNotReady(
            "the container was removed during the command", hint="start it again with `dflash-deploy up`"
        ) from None
    except (DockerException, OSError) as problem:
        raise EngineNotReady(
            f"Docker no longer responds: {first_line(problem)}",
            hint="check Docker with `systemctl status docker`, then continue with `dflash-deploy up`",
        ) from None


def _address(attributes: Mapping[str, Any]) -> str:
    """Return HOST:PORT where the API is published; in host network mode, the address that the engine listens on."""
    host = attributes["HostConfig"]
    if host["NetworkMode"] == "host":
        variables = dict(line.partition("=")[::2] for line in attributes["Config"]["Env"] or ())
        return f"{Settings.dflash_bind.text(variables)}:{Settings.dflash_port.text(variables)}"
    for port in (host["PortBindings"] or {}).get(f"{INNER_PORT}/tcp", ()):
        return f"{port['HostIp']}:{port['HostPort']}"
    return ""


def parse_stamped(raw: str) -> list[tuple[str, str]]:
    """Split a container's log into (time stamp, text)."""
    stamped = (line.partition(" ") for line in raw.split("\n"))
    return [(stamp, last_state(text)) for stamp, _, text in stamped if stamp]


def cursor_of(stamp: str) -> str:
    """A time of Docker's API as the time stamps of logs have it: with all nine digits of the nanoseconds."""
    seconds, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{seconds}.{fraction:0<9}Z"


def _seconds(stamp: str) -> float:
    # datetime does not parse nanoseconds
    return datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()
