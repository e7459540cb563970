"""The engine in a container: the Compose command starts and removes it, the engine's API tells its state and log."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment import Deployment, render
from dflash_deploy.deployment.render import SERVICE
from dflash_deploy.errors import EngineMissing, EngineNotReady
from dflash_deploy.host import find_container_engine
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.container_job import first_line
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate, Phase, last_state

STOP_GRACE = 45
"""Seconds a container gets to end by itself; compose/base.yaml says the same."""

_PHASES: Mapping[str, Phase] = {
    "created": "exited",
    "running": "running",
    "paused": "paused",
    "restarting": "restarting",
    "exited": "exited",
    "dead": "exited",
}


def compose_command(deployment: Deployment, *verb: str) -> list[str]:
    """The argument list of one Compose call.

    Every call names project, files and `.env` itself: a call that leaves one out works on something else.
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
        str(deployment.settings_file),
        *(part for file in files for part in ("-f", str(file))),
        *verb,
    ]


def compose_environment(environment: Mapping[str, str], written: Collection[str]) -> dict[str, str]:
    """This process's environment without settings and all else that `.env` holds (`written`).

    To Compose an exported variable counts more than the same line of `.env`.
    """
    return {name: value for name, value in environment.items() if name not in {*all_setting_names(), *written}}


class ComposeRuntime:
    """One deployment under Docker Compose."""

    name = "compose"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan

    def preflight(self) -> None:
        """Raises EngineMissing where no container engine answers, or its Compose plugin does not."""
        engine = find_container_engine()
        if engine is None:
            own = ", or use this machine's own vLLM: init --runtime native" if self._plan.engine.native else ""
            raise EngineMissing("no container engine answers", hint=f"start Docker (`systemctl start docker`){own}")
        if engine.compose is None:
            raise EngineMissing(
                f"Docker {engine.version} answers, but `docker compose` does not",
                hint="install the Compose plugin (docker-compose-plugin, or docker-compose-v2)",
            )

    def start(self, narrate: Narrate) -> bool:
        """`docker compose up -d`, after writing compose.yaml anew. Raises EngineNotReady with Compose's own words."""
        render(self._deployment, self._plan)
        before = self.state()
        if before.phase == "paused":
            self._compose("unpause", narrate=narrate)
        # Compose looks at the networks of a container itself, but not in its older releases
        anew = () if before.connected else ("--force-recreate",)
        self._compose("up", "--detach", "--remove-orphans", *anew, narrate=narrate)
        after = self.state()
        return before.identity != after.identity or before.phase != "running"

    def build(self, narrate: Narrate) -> None:
        """`docker compose build`, after writing compose.yaml anew. Raises EngineNotReady with Compose's own words."""
        self.preflight()
        render(self._deployment, self._plan)
        self._compose("build", narrate=narrate)

    def halt(self) -> None:
        """Stop the container, which also ends its restarting, and keep it for its log."""
        self._compose("stop", "--timeout", str(STOP_GRACE))

    def down(self) -> bool:
        """Remove the container and its network. The cache volume and the weights stay."""
        there = self._container() is not None
        self._compose("down", "--timeout", str(STOP_GRACE))
        return there

    def state(self) -> EngineState:
        """The container's state as the engine's API tells it."""
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
        """What `docker stats` shows: the container's memory without files that were read and may be dropped."""
        container = self._container()
        if container is None or container.status != "running":
            return None
        try:
            told = cast("dict[str, Any]", container.stats(stream=False, one_shot=True))
        except (DockerException, OSError):
            # it went away just now, or its engine is too old to say
            return None
        held = told.get("memory_stats") or {}
        used, files = held.get("usage"), held.get("stats") or {}
        # cgroup v2, and v1
        return None if used is None else int(used) - files.get("inactive_file", files.get("total_inactive_file", 0))

    def next_line(self) -> str:
        """Behind the last line of the container: started anew it goes on with the same log."""
        return self.read_log().cursor

    def read_log(self, cursor: str = "") -> LogPage:
        """Lines newer than `cursor`, a time stamp: the engine writes them with nanoseconds and a fixed width."""
        container = self._container()
        if container is None:
            return LogPage((), cursor)
        since = int(_seconds(cursor)) if cursor else None
        with _answering():
            raw = container.logs(timestamps=True, since=since).decode("utf-8", "replace")
        fresh = [(stamp, text) for stamp, text in parse_stamped(raw) if stamp > cursor]
        redact = self._deployment.redact
        return LogPage(tuple(redact(text) for _, text in fresh), fresh[-1][0] if fresh else cursor)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return docker_client()

    def _container(self) -> Container | None:
        labels = [
            f"com.docker.compose.project={self._deployment.project_name}",
            f"com.docker.compose.service={SERVICE}",
        ]
        with _answering():
            # one that is removed between the list and the look at it is as good as gone
            found = self._client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return found[0] if found else None

    def _compose(self, *verb: str, narrate: Narrate | None = None) -> None:
        """Run Compose, hand its lines on as they come, and keep the last for the error."""
        tail: deque[str] = deque(maxlen=20)
        redact = self._deployment.redact
        with subprocess.Popen(
            compose_command(self._deployment, *verb),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(self._deployment.directory),
            env=compose_environment(os.environ, self._deployment.values),
        ) as process:
            assert process.stdout is not None  # noqa: S101 - it was asked for above
            for line in process.stdout:
                if text := redact(line.strip()):
                    tail.append(text)
                    if narrate:
                        narrate(text)
        if process.returncode != 0:
            raise EngineNotReady(
                f"docker compose {verb[0]} failed: {tail[-1] if tail else 'it said nothing'}",
                hint="read the lines above; `docker compose config` in the deployment directory checks the file",
                detail="\n".join(tail),
            )


@contextmanager
def _answering() -> Iterator[None]:
    """What the engine's API does not answer is an EngineNotReady: it answered when this command began."""
    try:
        yield
    except NotFound:
        raise EngineNotReady(
            "the container was removed while it was looked at", hint="`dflash-deploy up` makes it anew"
        ) from None
    except (DockerException, OSError) as problem:
        raise EngineNotReady(
            f"Docker does not answer any more: {first_line(problem)}",
            hint="see to Docker (`systemctl status docker`); `dflash-deploy up` goes on from here",
        ) from None


def _address(attributes: Mapping[str, Any]) -> str:
    """HOST:PORT of the first published port; in the host's own network, as the engine was told to listen."""
    host = attributes["HostConfig"]
    if host["NetworkMode"] == "host":
        told = dict(line.partition("=")[::2] for line in attributes["Config"]["Env"] or ())
        return f"{told.get('DFLASH_BIND', '')}:{told.get('DFLASH_PORT', '')}"
    for ports in (host["PortBindings"] or {}).values():
        for port in ports:
            return f"{port['HostIp']}:{port['HostPort']}"
    return ""


def parse_stamped(raw: str) -> list[tuple[str, str]]:
    """Lines of a container's log as (time stamp, text)."""
    stamped = (line.partition(" ") for line in raw.split("\n"))
    return [(stamp, last_state(text)) for stamp, _, text in stamped if stamp]


def _seconds(stamp: str) -> float:
    # nanoseconds are beyond what datetime reads
    return datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()
