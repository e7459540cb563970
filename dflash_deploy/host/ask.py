"""Runs a command with a timeout, and finds Docker, its Compose plugin, and the facts that Docker reports.

A command returns its output, or the reason for its failure. Docker and the plugin are found only if they respond.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_deploy.errors import EngineMissing, FileRefused
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.intake.parse import Invalid, parse_object

# Seconds for a killed command to exit. A command that waits for a hung driver inside the kernel never exits.
LAST_WAIT = 1.0

log = logging.getLogger("dflash_deploy")


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command. `problem` says why it failed; `absent` means not installed, `late` a timeout."""

    out: str = ""
    err: str = ""
    code: int | None = None
    problem: str = ""
    absent: bool = False
    late: bool = False

    @property
    def good(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.code == 0


def ask(
    *command: str, timeout: float, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> CommandOutput:
    """Run a command without input. After `timeout` seconds it is killed, together with its child processes.

    `environment` and `directory` replace those of this process.
    """
    log.debug("runs %s", shlex.join(command))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # leader of a process group, so that its children can be killed with it
            start_new_session=True,
            env=environment,
            cwd=directory,
        )
    except FileNotFoundError:
        return CommandOutput(absent=True, problem=f"{command[0]} is not installed")
    except OSError as problem:
        return CommandOutput(problem=f"{command[0]} cannot be run: {problem.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        return CommandOutput(problem=f"{command[0]} did not respond within {timeout:g} s", late=True)
    except BaseException:
        _end(process)
        raise
    return CommandOutput(out, err, process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the command and its children. Do not wait if it cannot be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        # it stays in the kernel until the driver returns; without a return code Popen would warn that it still runs
        process.returncode = -signal.SIGKILL


DOCKER_TIMEOUT = 10.0  # seconds for Docker to respond. A hung Docker is treated as missing.
DEFAULT_HOST = "unix:///var/run/docker.sock"
INSTALL = "https://docs.docker.com/engine/install/"
LONGEST_WORDS = 200  # characters of what Docker says that are shown
LARGEST_CDI = 16 * MIB  # bytes of a CDI specification

# How Docker Desktop, a rootless Docker and the snap start, by a part of the socket or of the command.
_STARTS = {
    "/.docker/desktop/": "systemctl --user start docker-desktop",
    "/run/user/": "systemctl --user start docker",
    "/snap/": "sudo snap start docker",
}

NVIDIA_DEVICE = "nvidia.com/gpu"
# With this program on its PATH, Docker supports `--gpus` even if the NVIDIA runtime is not registered.
HOOK = "nvidia-container-runtime-hook"

GpuAccess = Literal["runtime", "cdi", ""]


@dataclass(frozen=True)
class ContainerEngine:
    """A Docker that responded: its version, the version of its Compose plugin (`None` without one), and its address.

    `gpu_access` says how containers get NVIDIA GPUs; it is empty if they cannot. `root` is the directory of its images.
    """

    version: str
    compose: str | None
    host: str
    gpu_access: GpuAccess = ""
    architecture: str = ""
    root: str = ""
    rootless: bool = False
    desktop: bool = False

    @property
    def snap(self) -> bool:
        """Whether it is the snap, which sees no files outside home directories."""
        return self.root.startswith("/var/snap/")

    @property
    def local(self) -> bool:
        """Whether its files are on this machine."""
        return self.host.startswith("unix://") and not self.desktop


@dataclass(frozen=True)
class Container:
    """A container as Docker lists it. `state` is Docker's word, such as `running` or `exited`."""

    name: str
    state: str


def container_engine() -> ContainerEngine:
    """The Docker of DOCKER_HOST, else of the current context. Raises EngineMissing with Docker's own words."""
    answer = ask("docker", "info", "--format", "{{json .}}", timeout=DOCKER_TIMEOUT)
    # it fails if Docker does not respond, and with some warnings too
    info = _document(answer.out)
    if info.get("ServerVersion"):
        return engine_of(info, host=_host(info))
    message, hint = _why_none(answer, info)
    raise EngineMissing(message, hint=hint)


def find_container_engine() -> ContainerEngine | None:
    """`container_engine`, or `None` if it does not respond."""
    try:
        return container_engine()
    except EngineMissing:
        return None


def _why_none(answer: CommandOutput, info: Mapping[str, Any]) -> tuple[str, str]:
    """Why Docker gave no information about itself, and what to do."""
    if answer.absent:
        return "Docker is not installed", f"install Docker Engine with Compose: {INSTALL}"
    # a command that hangs is not asked again
    version = CommandOutput() if answer.late else ask("docker", "--version", timeout=DOCKER_TIMEOUT)
    if "podman" in f"{version.out}{version.err}{answer.err}".lower():
        said = "`docker` is Podman's command here, whose Compose and GPU options are not those of Docker"
        return said, f"install Docker Engine with Compose: {INSTALL}"
    words = [str(one) for one in info.get("ServerErrors") or [] if one]
    said = " ".join((words[0] if words else answer.err).split())[:LONGEST_WORDS]
    host = os.environ.get("DOCKER_HOST", "") if answer.late else _host(info)
    if (other := elsewhere(host)) is not None:
        return f"Docker at {host} does not respond{f': {said}' if said else ''}", other[1]
    if "permission denied" in said.lower():
        group = "add your user to the group `docker` (`sudo usermod -aG docker $USER`) and log in again"
        return f"Docker does not let this user in: {said}", group
    said = said or answer.problem
    seen = f"{host} {said} {shutil.which('docker')}"
    start = next((command for part, command in _STARTS.items() if part in seen), "systemctl start docker")
    return f"Docker does not respond{f': {said}' if said else ''}", f"start it with `{start}`"


def elsewhere(host: str) -> tuple[str, str] | None:
    """Why the Docker at this address is of no use, and what to do: its files and GPUs are those of another machine."""
    here = ("unix://", "npipe://", "tcp://127.0.0.1", "tcp://localhost", "tcp://[::1]")
    if host.startswith(here) or not host:
        return None
    said = f"Docker is on another machine ({host}), and so are its files and GPUs"
    return said, "run dflash-deploy there, or `docker context use default` and unset DOCKER_HOST"


def engine_of(info: Mapping[str, Any], *, host: str = DEFAULT_HOST) -> ContainerEngine:
    """The Docker that `docker info` describes."""
    options = info.get("SecurityOptions") or []
    system = str(info.get("OperatingSystem", ""))
    desktop = system.startswith("Docker Desktop")
    return ContainerEngine(
        version=str(info["ServerVersion"]),
        compose=_compose(info),
        host=host,
        gpu_access=_gpu_access(info, local=host.startswith("unix://") and not desktop),
        architecture=str(info.get("Architecture", "")),
        root=str(info.get("DockerRootDir", "")),
        rootless=any("rootless" in option for option in options),
        desktop=desktop,
    )


def has_image(name: str) -> bool:
    """Whether Docker has an image of this name."""
    return _inspected_image(name).good


def image_id(name: str) -> str:
    """The digest that Docker knows an image by, which changes when it is built again; empty without this image."""
    answer = _inspected_image(name)
    return answer.out.strip() if answer.good else ""


def _inspected_image(name: str) -> CommandOutput:
    return ask("docker", "image", "inspect", "--format", "{{.Id}}", name, timeout=DOCKER_TIMEOUT)


def project_containers(project: str) -> tuple[Container, ...]:
    """All containers of a Compose project, including those that exited."""
    wanted = f"label=com.docker.compose.project={project}"
    answer = ask("docker", "ps", "--all", "--filter", wanted, "--format", "{{json .}}", timeout=DOCKER_TIMEOUT)
    listed = [_document(line) for line in answer.out.splitlines()] if answer.good else []
    return tuple(Container(one["Names"], one.get("State", "")) for one in listed if one.get("Names"))


def container_names(identities: Iterable[str]) -> dict[str, str]:
    """The names of running containers by their full id."""
    wanted = set(identities)
    if not wanted:
        return {}
    answer = ask("docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}", timeout=DOCKER_TIMEOUT)
    pairs = (line.partition(" ") for line in answer.out.splitlines()) if answer.good else ()
    return {identity: name for identity, _, name in pairs if identity in wanted}


def _document(text: str) -> dict[str, Any]:
    try:
        return parse_object(text)
    except Invalid:
        return {}


def _host(info: Mapping[str, Any]) -> str:
    """The address of Docker. The context `default` is DOCKER_HOST, or the usual socket."""
    if preset := os.environ.get("DOCKER_HOST"):
        return preset
    context = (info.get("ClientInfo") or {}).get("Context", "")
    if context == "default":
        return DEFAULT_HOST
    endpoint = "{{.Endpoints.docker.Host}}"
    return ask("docker", "context", "inspect", "--format", endpoint, timeout=DOCKER_TIMEOUT).out.strip()


def _compose(info: Mapping[str, Any]) -> str | None:
    for plugin in (info.get("ClientInfo") or {}).get("Plugins") or []:
        if plugin.get("Name") == "compose" and not plugin.get("Err"):
            return str(plugin.get("Version", "")).removeprefix("v") or None
    return None


def _gpu_access(info: Mapping[str, Any], *, local: bool) -> GpuAccess:
    """A registered runtime, or the toolkit's hook if Docker is local; else devices from CDI specifications."""
    if "nvidia" in (info.get("Runtimes") or {}) or (local and shutil.which(HOOK)):
        return "runtime"
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or []]
    if any(device.startswith(NVIDIA_DEVICE) for device in devices):
        return "cdi"
    # older versions list no devices, only the CDI directories, if CDI is enabled
    directories = [Path(name) for name in info.get("CDISpecDirs") or []] if local else []
    return "cdi" if any(map(_describes_gpus, directories)) else ""


def _describes_gpus(directory: Path) -> bool:
    """Whether a CDI specification in this directory is for NVIDIA GPUs."""
    try:
        files = [file for file in directory.iterdir() if file.suffix in {".yaml", ".json"}]
        return any(NVIDIA_DEVICE in read_text(file, limit=LARGEST_CDI, lossy=True) for file in files)
    except (OSError, FileRefused):
        return False
