"""What runs the engine: the container engine with Compose and GPUs, or the engine installed here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dflash_deploy.doctor.check import Check, at_least
from dflash_deploy.doctor.subject import Subject
from dflash_deploy.errors import EngineMissing
from dflash_deploy.host import ContainerEngine
from dflash_deploy.host.ask import ask
from dflash_deploy.host.containers import DOCKER_TIMEOUT, NVIDIA_DEVICE, has_image
from dflash_deploy.plan import Plan

OLDEST_ENGINE = "20.10"
OLDEST_COMPOSE = "2.20"
OLDEST_CDI = "25"
CDI_SERVES_NVIDIA = "29"
"""From here on `driver: nvidia` of a Compose file is served by CDI too (moby/moby#50228)."""

PROBE_TIMEOUT = 90.0
"""Seconds for a container to start and nvidia-smi in it to answer."""

_TOOLKIT = (
    "install the NVIDIA Container Toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)


def runs_it(subject: Subject, plan: Plan) -> Iterator[Check]:
    """The container engine and Compose, or the installed engine, as the plan's runtime needs."""
    if plan.runtime == "native":
        yield _native(subject, plan)
        return
    engine = subject.facts.container_engine
    if engine is None:
        yield Check(
            "container engine",
            "no",
            "no container engine answers `docker info`",
            "start Docker (`systemctl start docker`) and be in the group docker"
            + (", or use init --runtime native" if plan.engine.native else ""),
        )
        return
    yield _engine(engine)
    yield _compose(engine)


def gpus_in_containers(subject: Subject, plan: Plan) -> Iterator[Check]:
    """Whether containers get the GPUs, by what the engine says and, where it is allowed, by trying."""
    engine = subject.facts.container_engine
    if plan.runtime != "compose" or plan.engine.cpu or engine is None:
        return
    yield _access(engine)
    if subject.probe:
        yield _probe(engine, plan)


def _engine(engine: ContainerEngine) -> Check:
    kind = "Docker Desktop, engine" if engine.desktop else "rootless engine" if engine.rootless else "engine"
    saw = f"{kind} {engine.version} at {engine.host}; {OLDEST_ENGINE} is the oldest that will do"
    if at_least(engine.version, OLDEST_ENGINE):
        return Check("container engine", "ok", saw)
    return Check("container engine", "no", saw, "update Docker: https://docs.docker.com/engine/install/")


def _compose(engine: ContainerEngine) -> Check:
    fix = "install the Compose plugin (docker-compose-plugin, or docker-compose-v2)"
    if engine.compose is None:
        return Check("compose", "no", "`docker compose` does not answer", fix)
    saw = f"Compose {engine.compose}; {OLDEST_COMPOSE} is the oldest that will do"
    return Check("compose", "ok", saw) if at_least(engine.compose, OLDEST_COMPOSE) else Check("compose", "no", saw, fix)


def _access(engine: ContainerEngine) -> Check:
    name = "gpu in containers"
    match engine.gpu_access:
        case "runtime":
            return Check(name, "ok", "the engine has the NVIDIA runtime")
        case "cdi" if not at_least(engine.version, OLDEST_CDI):
            saw = f"a CDI specification names NVIDIA GPUs, but engine {engine.version} reads none before {OLDEST_CDI}"
            return Check(name, "no", saw, _TOOLKIT)
        case "cdi" if not at_least(engine.version, CDI_SERVES_NVIDIA):
            saw = (
                f"GPUs by CDI alone; compose.yaml asks for the driver nvidia, which needs {CDI_SERVES_NVIDIA} with CDI"
            )
            return Check(name, "warning", f"{saw} (engine {engine.version})", f"{_TOOLKIT}; or update Docker")
        case "cdi":
            return Check(name, "ok", f"engine {engine.version} gives containers GPUs by CDI")
        case _:
            return Check(name, "no", "the engine has neither the NVIDIA runtime nor CDI devices of NVIDIA", _TOOLKIT)


def _probe(engine: ContainerEngine, plan: Plan) -> Check:
    """Start a container that lists its GPUs; never fetch an image for it."""
    name = "gpu probe"
    images = [plan.values.get("DFLASH_IMAGE", ""), plan.values.get("DFLASH_BASE_IMAGE", "")]
    image = next((image for image in images if image and has_image(image)), None)
    if image is None:
        return Check(
            name, "skipped", f"no image is here to start a container from: {' and '.join(filter(None, images))}"
        )
    container = f"dflash-probe-{os.getpid()}"
    answer = ask(*probe_command(engine, image, container), timeout=PROBE_TIMEOUT)
    if answer.late:
        # the command was given up, its container runs on
        ask("docker", "rm", "--force", container, timeout=DOCKER_TIMEOUT)
    if answer.good:
        return Check(name, "ok", f"a container of {image} sees {len(answer.out.splitlines())} GPU")
    # the lines below the first are advice on the command's options
    said = (answer.problem or answer.err.strip() or answer.out.strip() or "nothing").splitlines()[0]
    return Check(name, "no", f"a container of {image} sees no GPU: {said}", _TOOLKIT)


def probe_command(engine: ContainerEngine, image: str, name: str) -> list[str]:
    """The argument list of a container that lists its GPUs and goes."""
    by_device = engine.gpu_access == "cdi" and not at_least(engine.version, CDI_SERVES_NVIDIA)
    gpus = ["--device", f"{NVIDIA_DEVICE}=all"] if by_device else ["--gpus", "all"]
    quiet = ["--rm", "--pull", "never", "--network", "none", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return ["docker", "run", "--name", name, *quiet, *gpus, "--entrypoint", "nvidia-smi", image, "--list-gpus"]


def _native(subject: Subject, plan: Plan) -> Check:
    installed = subject.facts.native_engine
    extra = f"pip install 'dflash-deploy[{plan.engine.native}]'"
    if subject.runtime is not None:
        try:
            subject.runtime.preflight()
        except EngineMissing as missing:
            return Check("engine", "no", missing.message, missing.hint)
    elif installed is None:
        return Check("engine", "no", "no vLLM is installed beside this Python", f"{extra}, or init --runtime compose")
    elif installed.cpu != plan.engine.cpu:
        build = "the CPU build" if installed.cpu else "a build for GPUs"
        return Check("engine", "no", f"{plan.engine.name} is planned; {installed.version} is {build}", extra)
    seen = f"{installed.distribution} {installed.version} is installed" if installed else "the engine is installed"
    return Check("engine", "ok", seen)
