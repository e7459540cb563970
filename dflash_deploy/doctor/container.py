"""What runs the engine: Docker with Compose, GPUs and closed ports, or the engine installed on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from dflash_deploy.doctor.check import Check, DoctorContext, at_least
from dflash_deploy.errors import EngineMissing
from dflash_deploy.host.ask import DOCKER_TIMEOUT, NVIDIA_DEVICE, ContainerEngine, ask, elsewhere, has_image
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.registry import TagAnswer, another_tag, ask_tag, image_here

OLDEST_ENGINE = "20.10"
OLDEST_COMPOSE = "2.20"
OLDEST_CDI = "25"
# From this version of Docker on, CDI also serves `driver: nvidia` of a Compose file (moby/moby#50228).
CDI_SERVES_NVIDIA = "29"

WSL = "microsoft"  # A part of the release of the kernel of Windows' Linux, where Docker Desktop has GPUs
PROBE_TIMEOUT = 90.0  # seconds for a container to start and for nvidia-smi in it to respond

_TOOLKIT = (
    "install the NVIDIA Container Toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)


def runs_it(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Docker and Compose, or the installed engine, depending on the runtime of the plan."""
    if plan.runtime == "native":
        yield _native(subject, plan)
        return
    engine = subject.facts.container_engine
    if engine is None:
        message, hint = subject.facts.no_docker
        yield Check("container engine", "no", message, f"{hint}{_without_docker(plan)}")
        return
    if (other := elsewhere(engine.host)) is not None:
        yield Check("container engine", "no", *other)
        return
    yield _engine(engine)
    yield _compose(engine)


def _without_docker(plan: Plan) -> str:
    """How to run the engine without Docker, if it can be installed here; empty if not."""
    if not plan.engine.native:
        return ""
    return (
        f", or {plan.engine.kind.how_to_install(plan.engine.native)} and `dflash-deploy init --force --runtime native`"
    )


def gpus_in_containers(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether containers get the GPUs, from what Docker reports and, with `--probe`, by starting a container."""
    engine = subject.facts.container_engine
    if plan.runtime != "compose" or plan.engine.cpu or engine is None:
        return
    yield _access(engine)
    if subject.probe:
        yield _probe(engine, plan)


def base_image(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the tag that the image is built on can be pulled, unless Docker has it, or the image, already."""
    name, base = "base image", plan.settings.dflash_base_image
    if plan.runtime != "compose" or subject.facts.container_engine is None or not base:
        return
    have = image_here(plan)
    yield Check(name, "ok", f"{have} is on this machine") if have else judge_tag(base, ask_tag(base))


def judge_tag(image: str, answer: TagAnswer) -> Check:
    """The result for the answer of the image's registry."""
    name, saw = "base image", answer.about(image)
    if answer.exists is None:
        return Check(name, "skipped", saw, "`dflash-deploy up` pulls it")
    return Check(name, "ok", saw) if answer.exists else Check(name, "no", saw, another_tag(image, answer))


def _engine(engine: ContainerEngine) -> Check:
    kind = "Docker Desktop, version" if engine.desktop else "rootless Docker" if engine.rootless else "Docker"
    saw = f"{kind} {engine.version} at {engine.host}; the minimum is {OLDEST_ENGINE}"
    if engine.snap:
        fix = "`sudo snap remove docker`, and install Docker Engine: https://docs.docker.com/engine/install/"
        return Check("container engine", "warning", f"{saw}; it is the snap, which reads files below /home only", fix)
    if at_least(engine.version, OLDEST_ENGINE):
        return Check("container engine", "ok", saw)
    return Check("container engine", "no", saw, "update Docker: https://docs.docker.com/engine/install/")


def _compose(engine: ContainerEngine) -> Check:
    fix = "install the Compose plugin (docker-compose-plugin, or docker-compose-v2)"
    if engine.compose is None:
        return Check("compose", "no", "the Compose plugin (`docker compose`) is missing or broken", fix)
    saw = f"Compose {engine.compose}; the minimum is {OLDEST_COMPOSE}"
    return Check("compose", "ok", saw) if at_least(engine.compose, OLDEST_COMPOSE) else Check("compose", "no", saw, fix)


def _access(engine: ContainerEngine) -> Check:
    name = "gpu in containers"
    match engine.gpu_access:
        case "runtime":
            return Check(name, "ok", "Docker has the NVIDIA runtime")
        case "cdi" if not at_least(engine.version, OLDEST_CDI):
            saw = f"a CDI specification lists NVIDIA GPUs, but Docker {engine.version} cannot read it; {OLDEST_CDI} can"
            return Check(name, "no", saw, _TOOLKIT)
        case "cdi" if not at_least(engine.version, CDI_SERVES_NVIDIA):
            saw = (
                f"Docker {engine.version} gives containers GPUs only by CDI; "
                f"compose.yaml uses the driver nvidia, which CDI supports from Docker {CDI_SERVES_NVIDIA} on"
            )
            return Check(name, "warning", saw, f"{_TOOLKIT}; or update Docker")
        case "cdi":
            return Check(name, "ok", f"Docker {engine.version} gives containers GPUs by CDI")
        case _ if engine.desktop and WSL not in platform.release().lower():
            fix = "use Docker Engine: https://docs.docker.com/engine/install/, and `docker context use default`"
            return Check(name, "no", "Docker Desktop gives containers no GPU on Linux", fix)
        case _:
            more = "; without root, also `no-cgroups = true` in its config.toml" if engine.rootless else ""
            return Check(
                name, "no", "Docker has neither the NVIDIA runtime nor NVIDIA CDI devices", f"{_TOOLKIT}{more}"
            )


def _probe(engine: ContainerEngine, plan: Plan) -> Check:
    """Start a container that lists its GPUs. It never pulls an image."""
    name = "gpu probe"
    images = [plan.settings.dflash_image, plan.settings.dflash_base_image]
    image = next((image for image in images if image and has_image(image)), None)
    if image is None:
        return Check(
            name, "skipped", f"no image to start a container from: pull {' or '.join(filter(None, images))} first"
        )
    container = f"dflash-probe-{os.getpid()}"
    answer = ask(*probe_command(engine, image, container), timeout=PROBE_TIMEOUT)
    if answer.late:
        # the command timed out; its container still runs
        ask("docker", "rm", "--force", container, timeout=DOCKER_TIMEOUT)
    if answer.good:
        return Check(name, "ok", f"a container of {image} sees {len(answer.out.splitlines())} GPU")
    # the lines after the first are advice on the command's options
    said = (answer.problem or answer.err.strip() or answer.out.strip() or "nothing").splitlines()[0]
    return Check(name, "no", f"a container of {image} sees no GPU: {said}", _TOOLKIT)


def probe_command(engine: ContainerEngine, image: str, name: str) -> list[str]:
    """The arguments of `docker run` for a container that lists its GPUs and is removed."""
    by_device = engine.gpu_access == "cdi" and not at_least(engine.version, CDI_SERVES_NVIDIA)
    gpus = ["--device", f"{NVIDIA_DEVICE}=all"] if by_device else ["--gpus", "all"]
    quiet = ["--rm", "--pull", "never", "--network", "none", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return ["docker", "run", "--name", name, *quiet, *gpus, "--entrypoint", "nvidia-smi", image, "--list-gpus"]


def _native(subject: DoctorContext, plan: Plan) -> Check:
    installed = subject.facts.native_engines.get(plan.engine.engine)
    how = plan.engine.kind.how_to_install(plan.engine.native or plan.engine.kind.name)
    if subject.runtime is not None:
        try:
            subject.runtime.preflight()
        except EngineMissing as missing:
            return Check("engine", "no", missing.message, missing.hint)
    elif installed is None:
        return Check(
            "engine",
            "no",
            f"{plan.engine.kind.title} is not installed for this Python",
            f"{how}, or `dflash-deploy init --force --runtime compose`",
        )
    elif installed.cpu != plan.engine.cpu:
        build = "the CPU build" if installed.cpu else "a build for GPUs"
        return Check("engine", "no", f"the plan uses {plan.engine.name}, but {installed.version} is {build}", how)
    seen = f"{installed.distribution} {installed.version} is installed" if installed else "the engine is installed"
    return Check("engine", "ok", seen)
