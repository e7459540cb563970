"""The engine in a container: Compose starts and removes it, Docker's API returns its state and log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from docker.errors import DockerException, NotFound

from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.service_names import INNER_PORT, service_of
from dflash_deploy.deployment.services import ENGINES_NETWORK, FINGERPRINT, rendered_fingerprint
from dflash_deploy.errors import EngineMissing, EngineNotReady
from dflash_deploy.host import container_engine, elsewhere
from dflash_deploy.runtime.compose_call import STOP_GRACE, remove_project, run_compose
from dflash_deploy.runtime.container_job import first_line
from dflash_deploy.runtime.container_log import read_container_log
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate, Phase, last_state
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan

_PHASES: Mapping[str, Phase] = {
    "created": "exited",
    "running": "running",
    "paused": "paused",
    "restarting": "restarting",
    "exited": "exited",
    "dead": "exited",
}


class ComposeRuntime:
    """One service of a deployment under Docker Compose: its only engine, one of several, their router, or the door."""

    name = "compose"

    def __init__(self, deployment: Deployment, plan: Plan, service: str = "") -> None:
        """`service` is that of the engine if it is empty."""
        self._deployment = deployment
        self._plan = plan
        self._service = service or service_of(deployment)

    def preflight(self) -> None:
        """Raise EngineMissing if Docker or its Compose plugin does not respond, or is on another machine."""
        try:
            engine = container_engine()
        except EngineMissing as missing:
            kind = self._plan.engine.kind
            usable = self._plan.engine.native and kind.installed()
            own = f", or use the installed {kind.title} with `init --runtime native`" if usable else ""
            raise EngineMissing(missing.message, hint=f"{missing.hint}{own}") from None
        if (other := elsewhere(engine.host)) is not None:
            raise EngineMissing(other[0], hint=other[1])
        if engine.compose is None:
            raise EngineMissing(
                f"Docker {engine.version} responds, but `docker compose` does not",
                hint="install the Compose plugin (docker-compose-plugin, or docker-compose-v2)",
            )

    def start(self, narrate: Narrate) -> bool:
        """Write compose.yaml and run `docker compose up -d`. Raises EngineNotReady with Compose's message.

        The file of several engines is written before the first of them starts.
        """
        one_of_several = self._deployment.member is not None
        if not one_of_several:
            render(self._deployment, self._plan)
        before = self.state()
        if before.phase == "paused":
            self._compose("unpause", *self._only, narrate=narrate)
        # older releases of Compose do not notice that a container is disconnected from its network
        recreate = () if before.connected else ("--force-recreate",)
        options = ("--no-deps",) if one_of_several else ("--remove-orphans",)
        self._compose("up", "--detach", *options, *recreate, *self._only, narrate=narrate)
        after = self.state()
        return before.identity != after.identity or before.phase != "running"

    def build(self, narrate: Narrate) -> None:
        """Write compose.yaml and run `docker compose build`. Raises EngineNotReady with Compose's message."""
        self.preflight()
        render(self._deployment, self._plan)
        self._compose("build", narrate=narrate)

    def is_current(self) -> bool:
        """Return whether the engine runs with the settings of the plan.

        Compose itself notices changed settings of a single engine. One of several is restarted only after the router
        has stopped sending to it, so its container is compared with compose.yaml.
        """
        if self._deployment.member is None:
            return self.state().alive
        container = self._container()
        if container is None or container.status != "running":
            return False
        return str(container.labels.get(FINGERPRINT)) == rendered_fingerprint(self._deployment, self._service)

    @property
    def private_url(self) -> str:
        """The URL at which a router in the same network reaches the engine."""
        return f"http://{self._service}:{INNER_PORT}"

    @property
    def address_here(self) -> str:
        """The address of the container in the private network, reached from this machine only; empty if none runs."""
        container = self._container()
        networks = {} if container is None else container.attrs["NetworkSettings"]["Networks"]
        return next((str(at["IPAddress"]) for name, at in networks.items() if name.endswith(f"_{ENGINES_NETWORK}")), "")

    def halt(self, *, at_once: bool = False) -> None:
        """Stop the container, which also ends its restarts, and keep it for its log. `at_once`: kill it."""
        self._compose("stop", "--timeout", "0" if at_once else str(STOP_GRACE), *self._only)

    def down(self) -> bool:
        """Remove the container, and of a single engine the network. The cache volume and the weights stay."""
        there = self._container() is not None
        if self._deployment.member is None:
            remove_project(self._deployment)
        elif there:
            self._compose("stop", "--timeout", str(STOP_GRACE), self._service)
            self._compose("rm", "--force", self._service)
        return there

    @property
    def _only(self) -> tuple[str, ...]:
        """The service, if the file has others beside it that are not the user's."""
        alone = self._deployment.member is None and not self._plan.settings.published
        return () if alone else (self._service,)

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

    @property
    def ports(self) -> frozenset[int]:
        """The ports of this machine that the running container has."""
        container = self._container()
        if container is None or container.status != "running":
            return frozenset()
        published = container.attrs["HostConfig"]["PortBindings"] or {}
        named = (port.get("HostPort") or "" for ports in published.values() for port in ports)
        # empty: Docker chooses a port, as a person's compose.override.yaml may ask
        return frozenset(int(port) for port in named if port.isdecimal())

    @property
    def begun(self) -> str:
        """The log cursor at the last start of the container, which continues the log of those before; may be empty."""
        container = self._container()
        return "" if container is None else cursor_of(str(container.attrs["State"]["StartedAt"]))

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


def project_labels(client: docker.DockerClient, deployment: Deployment) -> tuple[Mapping[str, str], ...]:
    """Return the labels of each container of a deployment, whatever its state. Raises DockerException."""
    wanted = [f"com.docker.compose.project={deployment.project_name}"]
    listed = client.api.containers(all=True, filters={"label": wanted})
    return tuple(one.get("Labels") or {} for one in listed)


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
