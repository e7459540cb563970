"""Rules about the machine: is it the one that the plan is for, and can it run the image?"""

from __future__ import annotations

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.base_image import base_images, driver_needed
from dflash_deploy.plan.choose import fits, fitting_gpus
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule


def hardware_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """A profile for other hardware than this may be meant for another machine."""
    if fits(plan.profile, facts):
        return None
    seen = ", ".join(f"{gpu.name}{' (split by MIG)' if gpu.mig else ''}" for gpu in facts.gpus)
    seen = seen or facts.gpu_problem or "no GPU"
    return Finding(
        "hardware-differs",
        "warning",
        f"profile {plan.profile.name} is for {plan.profile.title}; this machine has {seen}",
        "use the files on the machine they are for, or name this machine's profile (DFLASH_PROFILE, --profile)",
        why="sizes and backends are chosen for the profile's hardware",
    )


def gpus_unused(plan: Plan, facts: HostFacts) -> Finding | None:
    """More GPUs than the profile takes."""
    used = fitting_gpus(plan.profile, facts)
    if not used or len(used) == len(facts.gpus):
        return None
    return Finding(
        "gpus-unused",
        "note",
        f"{len(used)} of this machine's {len(facts.gpus)} GPUs are used, all of one kind: {used[0].name}",
        "set CUDA_VISIBLE_DEVICES to others of the same kind, if you like",
        why="the engine splits a model over equal GPUs, and the profile is for so many",
    )


def driver_too_old(plan: Plan, facts: HostFacts) -> Finding | None:
    """CUDA 13 images need a driver of the 580 series."""
    wanted = (driver_needed(plan.engine, plan.settings.dflash_base_image), plan.profile.hardware.driver)
    needed = max(filter(None, wanted), default=None, key=int)
    old = [gpu for gpu in fitting_gpus(plan.profile, facts) if gpu.driver and needed and below(gpu.driver, needed)]
    if not old or plan.runtime == "native":
        return None
    return Finding(
        "driver-too-old",
        "error",
        f"{old[0].name} has driver {old[0].driver}; the image of {plan.engine.title} needs {needed}",
        f"install an NVIDIA driver from {needed} on",
        "NVIDIA's table of CUDA versions and drivers",
        why="the container would start and find no GPU that it can use",
    )


def no_image_for_processor(plan: Plan, facts: HostFacts) -> Finding | None:
    """An x86 image on a Spark ends with `cannot execute binary file`."""
    if plan.runtime == "native" or not facts.architecture or facts.architecture in plan.engine.base_images:
        return None
    known = ", ".join(plan.engine.base_images)
    return Finding(
        "no-image-for-processor",
        "error",
        f"this machine is {facts.architecture}; {plan.engine.title} has images for {known}",
        "choose another engine with --engine, or use the files on the machine they are for",
        "AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-DFlash#12",
        why="a container of another processor ends with `cannot execute binary file`",
    )


def base_image_unseen(plan: Plan, facts: HostFacts) -> Finding | None:
    """A tag that follows the engine's naming, and that nobody here has pulled."""
    tag = plan.settings.dflash_base_image
    if plan.runtime == "native" or tag not in {image.tag for _, image in base_images(plan.engine) if not image.seen}:
        return None
    return Finding(
        "base-image-unseen",
        "note",
        f"the base image {tag} is named as its project names its images; this project has not pulled it",
        "if it cannot be pulled, name another release in DFLASH_BASE_IMAGE",
        why="tags are renamed and removed",
    )


def base_image_of_another_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """DFLASH_ENGINE changed by hand, and the image left as it was."""
    tag = plan.settings.dflash_base_image
    known = {image.tag for image in plan.engine.base_images.values()}
    if plan.runtime == "native" or _repository(tag) in set(map(_repository, known)):
        return None
    return Finding(
        "base-image-of-another-engine",
        "warning",
        f"DFLASH_BASE_IMAGE={tag} is none that {plan.engine.title} is known to be in",
        f"empty DFLASH_BASE_IMAGE for {min(known)}, unless it is an image of your own",
        "catalog/engines",
        why="the image would be built on another engine, and refuse its settings",
    )


def _repository(tag: str) -> str:
    """An image's name without registry mirror, tag and digest."""
    return tag.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


def gpu_has_another_name(plan: Plan, facts: HostFacts) -> Finding | None:
    """Recognised by capability and memory alone."""
    used, names = fitting_gpus(plan.profile, facts), plan.profile.match.names
    if not used or any(name in used[0].name for name in names):
        return None
    return Finding(
        "gpu-has-another-name",
        "note",
        f"{used[0].name} is taken for {plan.profile.title}, whose compute capability and memory it has",
        "mind that bandwidth, and so every speed, may differ",
        why="settings and expected speed are those of the other card",
    )


RULES: tuple[Rule, ...] = (
    hardware_differs,
    gpu_has_another_name,
    gpus_unused,
    driver_too_old,
    no_image_for_processor,
    base_image_of_another_engine,
    base_image_unseen,
)
