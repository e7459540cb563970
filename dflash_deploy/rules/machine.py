"""Rules about the machine: does the plan match its hardware, and can it run the image?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dflash_deploy.host.gpu import VISIBLE, Gpu, driver_advice, is_lost
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.base_image import base_images, driver_needed
from dflash_deploy.plan.choose import fits, fitting_gpus
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule
from dflash_deploy.serve.settings import Settings

LEAST_SHARE = 0.85  # of the memory that a GPU is sold with: drivers report a few percent less


def hardware_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """A profile for hardware that this machine does not have; the plan may be for another machine."""
    # `gpu-missing` is about GPUs that cannot be read
    if fits(plan.profile, facts) or (facts.gpu_problem and not facts.gpus):
        return None
    seen = ", ".join(f"{gpu.name}{' (split by MIG)' if gpu.mig else ''}" for gpu in facts.gpus)
    return Finding(
        id="hardware-differs",
        severity="warning",
        message=f"profile {plan.profile.name} is for {plan.profile.title}; this machine has {seen or 'no GPU'}",
        why="sizes and backends are chosen for the profile's hardware",
        fix="use the files on the machine they are for, or set this machine's profile "
        f"({Settings.dflash_profile}, --profile)",
    )


def gpu_missing(plan: Plan, facts: HostFacts) -> Finding | None:
    """A GPU that is lost, or fewer GPUs than the plan needs.

    A machine without GPUs and without a problem may only make the files for another one.
    """
    settings, problem, here = plan.settings, facts.gpu_problem, len(facts.gpus)
    split = (settings.tensor_parallel_size or 0) * settings.data_parallel_size // settings.nodes
    needed = split or plan.profile.match.gpus
    # `visible-gpus` is about GPUs that are named
    named = here and plan.values.get(VISIBLE, "").strip()
    if plan.engine.cpu or named or not (here or problem) or (here >= needed and not is_lost(problem)):
        return None
    return Finding(
        id="gpu-missing",
        severity="error",
        message=f"GPUs that the plan needs: {needed}; GPUs that respond: {here}{f'; {problem}' if problem else ''}",
        why="the engine ends or waits for the GPU that is missing, and CUDA may fail on the others",
        fix=driver_advice(problem)
        if problem
        else "set another --profile, or use the files on the machine they are for",
        source="nvidia-smi, return codes",
    )


def gpus_unused(plan: Plan, facts: HostFacts) -> Finding | None:
    """More GPUs than the profile uses."""
    used = fitting_gpus(plan.profile, facts)
    if not used or len(used) == len(facts.gpus):
        return None
    left = [gpu for gpu in facts.gpus if gpu not in used]
    same = any(gpu.name == used[0].name for gpu in left)
    return Finding(
        id="gpus-unused",
        severity="note",
        message=f"the plan uses {len(used)} of {len(facts.gpus)} GPUs: {_named(used)}, not {_named(left)}",
        why="the engine splits a model over equal GPUs, and the profile is for this number of them",
        fix=f"to use another {used[0].name}, set {VISIBLE}" if same else "another kind needs another --profile",
    )


def visible_gpus(plan: Plan, facts: HostFacts) -> Finding | None:
    """CUDA_VISIBLE_DEVICES names GPUs that are missing, too few, too small for the profile, or split into slices."""
    written = plan.values.get(VISIBLE, "").strip()
    problem = next(_invisible(written.split(","), plan, facts), None) if written and facts.gpus else None
    if problem is None:
        return None
    return Finding(
        id="visible-gpus",
        severity="error",
        message=f"{VISIBLE}={written}: {problem[0]}",
        why=problem[1],
        fix="name GPUs by their numbers and MIG slices by their UUIDs, as `nvidia-smi -L` lists them, or empty it",
    )


def _invisible(written: Iterable[str], plan: Plan, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the GPUs that CUDA_VISIBLE_DEVICES names, and why it matters."""
    known = {gpu.uuid or str(gpu.index): gpu for gpu in facts.gpus}
    # a GPU's UUID is not read, nor are slices if `nvidia-smi -L` fails
    unread = ("GPU-", "MIG-") if any(gpu.mig and not gpu.slices for gpu in facts.gpus) else ("GPU-",)
    words = [word.strip() for word in written]
    missing = [word for word in words if word not in known and not word.startswith(unread)]
    named = [known[word] for word in words if word in known]
    needed = (plan.settings.tensor_parallel_size or 1) * plan.settings.data_parallel_size
    if missing:
        yield f"this machine has no GPU `{missing[0]}`", "CUDA ends the list there"
    if needed > 1 and any(gpu.uuid for gpu in named):
        yield f"{Settings.tensor_parallel_size}={needed} over MIG slices", "CUDA gives a process one slice only"
    if len(words) < needed:
        yield f"that is {len(words)} of the {needed} GPUs of {Settings.tensor_parallel_size}", "the engine ends"
    for gpu in named:
        if gpu.mig:
            yield f"GPU {gpu.index} is split into MIG slices, and none is named", "the engine gets the first slice"
        wanted = plan.profile.hardware.memory_gib
        if gpu.memory is not None and gpu.memory < wanted * GIB * LEAST_SHARE:
            yield f"GPU {gpu.index} is {gpu.name} with {gpu.memory / GIB:.0f} GiB", f"the plan is for {wanted:g} GiB"


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.index})" for gpu in gpus)


def driver_too_old(plan: Plan, facts: HostFacts) -> Finding | None:
    """A driver that is too old for the image: CUDA 13 needs the 580 series."""
    wanted = (driver_needed(plan.engine, plan.settings.dflash_base_image), plan.profile.hardware.driver)
    needed = max(filter(None, wanted), default=None, key=int)
    old = [gpu for gpu in fitting_gpus(plan.profile, facts) if gpu.driver and needed and below(gpu.driver, needed)]
    if not old or plan.runtime == "native":
        return None
    return Finding(
        id="driver-too-old",
        severity="error",
        message=f"{old[0].name} has driver {old[0].driver}; the image of {plan.engine.title} needs {needed}",
        why="the container starts and finds no GPU that it can use",
        fix=f"install NVIDIA driver {needed} or newer",
        source="NVIDIA's table of CUDA versions and drivers",
    )


def no_image_for_processor(plan: Plan, facts: HostFacts) -> Finding | None:
    """An image for another processor, such as an x86 image on a Spark."""
    if plan.runtime == "native" or not facts.architecture or facts.architecture in plan.engine.base_images:
        return None
    known = ", ".join(plan.engine.base_images)
    return Finding(
        id="no-image-for-processor",
        severity="error",
        message=f"this machine is {facts.architecture}; {plan.engine.title} has images for {known}",
        why="a container for another processor ends with `cannot execute binary file`",
        fix="choose another engine with --engine, or use the files on the machine they are for",
        source="AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-DFlash#12",
    )


def base_image_unseen(plan: Plan, facts: HostFacts) -> Finding | None:
    """A tag that follows the engine's naming scheme, but that this project has not pulled."""
    tag = plan.settings.dflash_base_image
    if plan.runtime == "native" or tag not in {image.tag for _, image in base_images(plan.engine) if not image.seen}:
        return None
    return Finding(
        id="base-image-unseen",
        severity="note",
        message=f"the tag of base image {tag} follows its project's naming scheme; this project has not pulled it",
        why="tags are renamed and removed",
        fix=f"`dflash-deploy doctor` asks its registry; {Settings.dflash_base_image} takes another tag",
    )


def base_image_of_another_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """The engine was changed in `.env`, and the image was not."""
    tag = plan.settings.dflash_base_image
    known = {image.tag for image in plan.engine.base_images.values()}
    if plan.runtime == "native" or _repository(tag) in set(map(_repository, known)):
        return None
    return Finding(
        id="base-image-of-another-engine",
        severity="warning",
        message=f"{Settings.dflash_base_image}={tag} is not a known base image of {plan.engine.title}",
        why="if it has another engine, that engine refuses the settings",
        fix=f"empty {Settings.dflash_base_image} for {min(known)}, unless it is your own image",
        source="catalog/engines",
    )


def _repository(tag: str) -> str:
    """An image's name without registry mirror, tag and digest."""
    return tag.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


def profile_computed(plan: Plan, facts: HostFacts) -> Finding | None:
    """A GPU that no profile describes: the settings are another profile's, sizes and speeds are computed."""
    profile = plan.profile
    if profile.evidence.state != "computed":
        return None
    return Finding(
        id="profile-computed",
        severity="note",
        message=f"no profile describes {profile.title}: {profile.evidence.by}",
        why="no run of these settings on this GPU is known; the expected speed is computed from its bandwidth",
        fix="measure it with `dflash-deploy bench`, and find its settings with `dflash-deploy tune`",
        source=profile.hardware.source,
    )


RULES: tuple[Rule, ...] = (
    hardware_differs,
    gpu_missing,
    profile_computed,
    gpus_unused,
    visible_gpus,
    driver_too_old,
    no_image_for_processor,
    base_image_of_another_engine,
    base_image_unseen,
)
