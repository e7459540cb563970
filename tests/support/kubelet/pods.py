"""Runs a pod: a container for its address, and its own in the network of that one. Probes it, and ends it."""

import base64
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.commands import checked, run_command
from tests.support.kubelet.node import Node
from tests.support.kubelet.spec import ContainerSpec, PodSpec, Probe, read_pod

LEAST_GRACE = 2.0
"""Seconds that a container has after SIGTERM in any case."""


@dataclass(frozen=True)
class Ended:
    """How a container ended: the seconds of its preStop and those of all, and its exit code, 137 after SIGKILL."""

    stopped: float
    seconds: float
    code: int


class Pod:
    """A pod that runs."""

    def __init__(self, name: str, address: str, spec: PodSpec, containers: Mapping[str, str]) -> None:
        """`containers`: the identity of each, by its name in the manifest."""
        self.name, self.address, self.spec, self.containers = name, address, spec, containers

    def of(self, container: str) -> ContainerSpec:
        """What the manifest says of a container."""
        return next(one for one in self.spec.containers if one.name == container)

    def inspected(self, container: str) -> dict[str, Any]:
        """What `docker inspect` says of a container."""
        found: dict[str, Any] = json.loads(checked("docker", "inspect", self.containers[container]))[0]
        return found

    def execute(self, container: str, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as the kubelet does."""
        return run_command("docker", "exec", self.containers[container], *command, timeout=timeout)

    def logs(self, container: str) -> str:
        """What a container wrote."""
        done = run_command("docker", "logs", self.containers[container])
        return done.stdout + done.stderr

    def passes(self, container: str, name: str) -> bool:
        """Whether a probe passes now."""
        probe = self.of(container).probes[name]
        match probe.kind:
            case "exec":
                return self.execute(container, *probe.target, timeout=probe.timeout).returncode == 0
            case "http":
                return self._answers(probe)
            case "tcp":
                with socket.socket() as client:
                    client.settimeout(probe.timeout)
                    return client.connect_ex((self.address, probe.port)) == 0

    def _answers(self, probe: Probe) -> bool:
        try:
            url = f"http://{self.address}:{probe.port}{probe.target[0]}"
            return 200 <= httpx.get(url, timeout=probe.timeout).status_code < 400
        except httpx.HTTPError:
            return False

    def waits(self, container: str, name: str, seconds: float) -> float:
        """Wait until a probe passes; return the seconds that it took."""
        began = time.monotonic()
        while not self.passes(container, name):
            assert self.inspected(container)["State"]["Running"], self.logs(container)
            assert time.monotonic() - began < seconds, self.logs(container)
            time.sleep(0.2)
        return time.monotonic() - began

    def end(self) -> dict[str, Ended]:
        """End it as the kubelet does: in each container preStop, then SIGTERM; SIGKILL once the grace is over."""
        ended: dict[str, Ended] = {}

        def end(container: ContainerSpec) -> None:
            began = time.monotonic()
            if container.pre_stop:
                done = self.execute(container.name, *container.pre_stop, timeout=self.spec.grace)
                assert done.returncode == 0, done.stderr
            stopped = time.monotonic() - began
            left = max(LEAST_GRACE, self.spec.grace - stopped)
            checked("docker", "stop", "--time", str(int(left)), self.containers[container.name], timeout=600)
            code = self.inspected(container.name)["State"]["ExitCode"]
            ended[container.name] = Ended(stopped, time.monotonic() - began, code)

        threads = [threading.Thread(target=end, args=(one,)) for one in self.spec.containers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ended


@contextmanager
def running(node: Node, name: str, spec: Mapping[str, Any], *, service: str = "") -> Iterator[Pod]:
    """A pod of a specification. `service` is a name under which other pods find it."""
    pod = read_pod(spec)
    places = node.volumes(name, pod)
    with ExitStack() as stack:
        alias = ("--network-alias", service) if service else ()
        pause = _started(stack, "--network", node.network, *alias, node.pause, "sleep", "infinity")
        state = json.loads(checked("docker", "inspect", pause))[0]
        address = state["NetworkSettings"]["Networks"][node.network]["IPAddress"]
        started = {
            one.name: _started(stack, *_joins(pause, pod), *arguments(one, pod, node, places)) for one in pod.containers
        }
        yield Pod(name, address, pod, started)


def _joins(pause: str, pod: PodSpec) -> Iterator[str]:
    yield from ("--network", f"container:{pause}")
    if pod.shares_processes:
        yield from ("--pid", f"container:{pause}")


def _started(stack: ExitStack, *words: str) -> str:
    identity = checked("docker", "run", "--detach", *words).strip()
    stack.callback(run_command, "docker", "rm", "--force", "--volumes", identity)
    return identity


def arguments(one: ContainerSpec, pod: PodSpec, node: Node, places: Mapping[str, Path]) -> list[str]:
    """The words of `docker run` for a container, from its options on. No init: a pod's first process is its own."""
    assert node.ignores_gpus or not one.gpus, f"{one.name} needs {one.gpus} GPUs, and the node has none"
    entry, *rest = one.command or ("",)
    return [
        *("--pull", one.pull, "--user", f"{pod.user}:{pod.group}", "--group-add", str(pod.fs_group)),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--cpu-shares", str(one.cpu_shares), "--memory-reservation", str(one.memory)),
        # Kubernetes has no health check of images
        "--no-healthcheck",
        *_environment(one, node),
        *_mounts(one, pod, node, places),
        *(("--entrypoint", entry) if entry else ()),
        one.image,
        *rest,
    ]


def _environment(one: ContainerSpec, node: Node) -> Iterator[str]:
    host, port = node.api
    found = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)} if host else {}
    for name in one.config_maps:
        found |= node.config_maps[name]
    for name, value in {**found, **one.env}.items():
        yield from ("--env", f"{name}={value}")


def _mounts(one: ContainerSpec, pod: PodSpec, node: Node, places: Mapping[str, Path]) -> Iterator[str]:
    volumes = {volume.name: volume for volume in pod.volumes}
    for mount in one.mounts:
        if volumes[mount.volume].kind == "memory":
            # the kubelet's has no other options; Docker's would also be `noexec`
            yield from ("--tmpfs", f"{mount.path}:rw,exec,mode=1777,size={volumes[mount.volume].source}")
            continue
        place = places[mount.volume]
        source = node.file_of(place, mount.sub_path, pod) if mount.sub_path else place
        yield from ("--mount", f"type=bind,source={source},target={mount.path}{',readonly' if mount.read_only else ''}")


def secret_of(line: str, kubectl: Path) -> tuple[str, dict[str, bytes]]:
    """The name and the contents of the Secret that a line of the README creates, without a cluster."""
    script = f"PATH={kubectl.parent}:/usr/bin:/bin; {line} --dry-run=client -o yaml"
    made = yaml.safe_load(checked("sh", "-c", script))
    return made["metadata"]["name"], {name: base64.b64decode(text) for name, text in made["data"].items()}
