"""Checks of the machine: its GPU, driver, memory and processor.

With unified memory the checks include what ends a process before the machine freezes, swap, and other programs that
hold memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from dflash_deploy.doctor.check import Check, DoctorContext, at_least, gib
from dflash_deploy.host.gpu import VISIBLE, Gpu, GpuProcess, gpu_processes, read_memory, running_programs, tenants
from dflash_deploy.plan.base_image import base_images, driver_needed
from dflash_deploy.plan.choose import fitting_gpus
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.sizes import utilization
from dflash_deploy.serve.settings import Settings

CPU_CACHE_GIB = 4.0  # giB of KV cache that vLLM's CPU build takes if VLLM_CPU_KVCACHE_SPACE is empty
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


def gpu(subject: DoctorContext) -> Iterator[Check]:
    """Whether nvidia-smi lists GPUs, if the plan needs any."""
    facts, plan = subject.facts, subject.plan
    if plan is not None and plan.engine.cpu and not facts.gpus:
        beside = f"; {facts.gpu_problem}" if facts.gpu_problem else ""
        yield Check("gpu", "ok", f"not needed: profile {plan.profile.name} runs on {facts.cpus} CPU cores{beside}")
    elif not facts.gpus:
        wanted = plan.profile.gpus if plan else 0
        saw = facts.gpu_problem or "nvidia-smi is not installed, and the PCI bus has no NVIDIA GPU"
        yield Check("gpu", "no" if wanted or facts.gpu_problem else "warning", saw, _driver_advice(facts.gpu_problem))
    elif facts.gpu_problem:
        saw = f"{_named(facts.gpus)}, but not all GPUs respond: {facts.gpu_problem}"
        yield Check("gpu", "warning", saw, "run `nvidia-smi` and `dmesg | grep NVRM`; a lost GPU needs a reboot")
    elif any(one.mig for one in facts.gpus):
        cut = ", ".join(str(one.index) for one in facts.gpus if one.mig)
        saw = f"{_named(facts.gpus)}; GPU {cut} is split into MIG slices, of which {VISIBLE} names none"
        choice = ", ".join(f"{part.uuid} ({part.name})" for one in facts.gpus for part in one.slices)
        fix = f"set {VISIBLE} in .env to a slice: {choice or 'none exists yet (`nvidia-smi mig -cgi`)'}"
        yield Check("gpu", "warning", saw, f"{fix}; or disable MIG: `nvidia-smi -mig 0`")
    else:
        yield Check("gpu", "ok", _named(facts.gpus))


def driver(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the driver is new enough for the profile's hardware and the engine's CUDA."""
    image = driver_needed(plan.engine, plan.settings.dflash_base_image)
    wanted = [version for version in (plan.profile.hardware.driver, image) if version]
    if plan.engine.cpu or not subject.facts.gpus or not wanted:
        return
    lowest = wanted[0] if all(at_least(wanted[0], other) for other in wanted) else wanted[-1]
    seen = subject.facts.gpus[0].driver
    saw = f"driver {seen or 'unknown'}; {plan.engine.name} on {plan.profile.name} needs {lowest}"
    fix = f"install NVIDIA driver {lowest} or newer and reboot"
    if not seen:
        yield Check("driver", "warning", saw, fix)
    else:
        yield Check("driver", "ok", saw) if at_least(seen, lowest) else Check("driver", "no", saw, fix)


def architecture(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the engine release has an image for the architecture of this machine."""
    if plan.runtime != "compose":
        return
    engine = subject.facts.container_engine
    named = (engine.architecture if engine else "") or subject.facts.architecture
    processor = _SAME.get(named, named)
    images = [(str(name), image) for name, image in base_images(plan.engine)]
    here = [image for name, image in images if name == processor]
    chosen = plan.settings.dflash_base_image
    image = next((image for image in here if image.tag == chosen), here[0] if here else None)
    if image is None:
        known = ", ".join(sorted({name for name, _ in images}))
        saw = f"{plan.engine.name} has images for {known}; this machine is {processor}"
        yield Check(
            "architecture",
            "no",
            saw,
            f"choose another engine release: `dflash-deploy profiles show {plan.profile.name}` lists them",
        )
    elif chosen not in {"", image.tag}:
        yield Check("architecture", "skipped", f"{Settings.dflash_base_image}={chosen}: a custom image is not checked")
    elif not image.seen:
        saw = f"{image.tag} for {processor} is an expected name; this project has no report of its use"
        fix = (
            f"run `docker manifest inspect {image.tag}`; if it does not exist, set {Settings.dflash_base_image} in .env"
        )
        yield Check("architecture", "warning", saw, fix)
    else:
        yield Check("architecture", "ok", f"{image.tag} exists for {processor}")


def memory(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the memory that the engine will take is free now; if not, which processes hold it."""
    if subject.engine_state.alive:
        yield Check("memory", "ok", "the deployment's own engine runs and holds its memory")
    elif plan.engine.cpu:
        yield _judged("memory", _cpu_need(plan), subject.facts.memory_available, ())
    elif plan.profile.hardware.unified:
        need = needed_memory(plan, subject.facts.memory_total)
        yield _judged("memory", need, subject.facts.memory_available, gpu_processes())
    elif subject.facts.gpus:
        holders = gpu_processes()
        # GPUs that do not match the profile may be busy
        for one in fitting_gpus(plan.profile, subject.facts) or subject.facts.gpus:
            need = needed_memory(plan, one.memory)
            place = f"memory of GPU {one.index}" if len(subject.facts.gpus) > 1 else "memory"
            yield _judged(place, need, one.free, holders)


def _judged(name: str, need: float, free: int | None, holders: Iterable[GpuProcess]) -> Check:
    fix = (
        f"stop the processes that hold it, or lower {Settings.gpu_memory_utilization} in .env; "
        "the driver frees memory some seconds after a process ends"
    )
    if free is None:
        return Check(name, "warning", f"{gib(need)} needed; this system does not report its free memory", fix)
    saw = f"{gib(free)} free, {gib(need)} needed"
    if free >= need:
        return Check(name, "ok", saw)
    held = "; ".join(map(_holder, holders))
    return Check(name, "no", f"{saw}; held by {held}" if held else saw, fix)


def _holder(process: GpuProcess) -> str:
    place = f"container {process.container}" if process.container else f"process {process.pid}"
    amount = f" with {gib(process.memory)}" if process.memory is not None else ""
    return f"{place} ({process.name}){amount}" if process.name else f"{place}{amount}"


def needed_memory(plan: Plan, memory: int | None) -> float:
    """Bytes that the engine takes of one GPU's memory: its share of the total; with llama.cpp at least the weights."""
    if plan.engine.kind.utilization is None:
        return _weights(plan) / max(plan.profile.gpus, 1)
    return utilization(plan.settings, plan.profile, plan.engine) * (memory or plan.profile.hardware.memory_gib * GIB)


def _cpu_need(plan: Plan) -> float:
    return _weights(plan) + (plan.settings.vllm_cpu_kvcache_space or CPU_CACHE_GIB) * GIB


def _weights(plan: Plan) -> int:
    drafter: int = plan.pair.drafter.bytes if plan.drafting else 0
    return drafter + plan.pair.target.bytes


def _named(gpus: tuple[Gpu, ...]) -> str:
    """The GPUs as text; equal GPUs are counted: `4 x NAME`."""
    kinds = list(dict.fromkeys(map(_kind, gpus)))
    counts = [sum(_kind(one) == kind for one in gpus) for kind in kinds]
    return ", ".join(f"{count} x {kind}" if count > 1 else kind for count, kind in zip(counts, kinds, strict=True))


def _kind(one: Gpu) -> str:
    size = gib(one.memory) if one.memory is not None else "memory shared with the system"
    return f"{one.name} ({f'compute capability {one.compute_capability}, ' if one.compute_capability else ''}{size})"


def _driver_advice(problem: str) -> str:
    """What to do if nvidia-smi lists no GPU."""
    if "version mismatch" in problem:
        return "reboot: the driver was updated, but the old one is still loaded"
    if "hangs" in problem:
        return "`dmesg | grep -i nvrm` shows the reason; a hung driver needs a reboot"
    return "install the NVIDIA driver and reboot, or run without a GPU: `init --profile cpu`"


# Programs that end a process when memory is short; DGX OS has earlyoom (hasso5703/dgx-spark-qwen38@719c17b).
OOM_DAEMONS = ("earlyoom", "systemd-oomd")

SWAPPED = GIB  # bytes in swap from which it is in use; idle programs leave less
SHOWN, SMALLEST = 4, GIB // 2  # tenants that are shown at most, and the bytes that each of them holds at least


def unified_memory(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """What a machine needs whose GPU uses the system's memory; nothing for other machines."""
    if not plan.profile.hardware.unified or plan.engine.cpu:
        return
    yield _oom_daemon()
    yield _swap()
    need, free = needed_memory(plan, subject.facts.memory_total), subject.facts.memory_available
    if free is not None and free < need and not subject.engine_state.alive:
        yield _tenants(plan, need, free, subject.facts.memory_total)


def _oom_daemon() -> Check:
    found = sorted(running_programs().intersection(OOM_DAEMONS))
    if found:
        return Check("oom daemon", "ok", f"{' and '.join(found)} runs, and ends a process if memory is short")
    saw = f"neither {' nor '.join(OOM_DAEMONS)} runs: without memory the machine freezes before a process ends"
    return Check("oom daemon", "warning", saw, "install one: `sudo apt install earlyoom`")


def _swap() -> Check:
    memory = read_memory()
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    if total is None or free is None:
        return Check("swap", "skipped", "this system does not report its swap")
    used = total - free
    if used < SWAPPED:
        return Check("swap", "ok", f"{gib(used)} of {gib(total)} used" if total else "none")
    saw = f"{gib(used)} of {gib(total)} used: memory was short, and the machine may freeze while it swaps"
    return Check("swap", "warning", saw, "stop what holds memory, then empty it: `sudo swapoff -a && sudo swapon -a`")


def _tenants(plan: Plan, need: float, free: int, total: int | None) -> Check:
    largest = islice((one for one in tenants() if one.memory >= SMALLEST), SHOWN)
    held = "; ".join(f"{one.name} with {gib(one.memory)}" for one in largest)
    saw = f"{gib(free)} available, {gib(need)} planned; the largest programs: {held or 'none above 0.5 GiB'}"
    lower = f"lower {Settings.max_model_len} in .env"
    if plan.engine.kind.utilization is not None and total:
        lower = f"set {Settings.gpu_memory_utilization} in .env to {math.floor(100 * free / total) / 100:g} or less"
    return Check("tenants", "warning", saw, f"stop them (`docker stop NAME`, or end the process), or {lower}")
