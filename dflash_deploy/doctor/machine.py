"""Checks of the machine: its GPU, driver, memory and processor.

With unified memory the checks include what ends a process before the machine freezes, swap, and other programs that
hold memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from dflash_deploy.doctor.check import Check, DoctorContext, Status, at_least, gib
from dflash_deploy.host.gpu import (
    OOM_DAEMONS,
    VISIBLE,
    Gpu,
    GpuProcess,
    driver_advice,
    gpu_processes,
    is_lost,
    read_memory,
    running_programs,
    tenants,
)
from dflash_deploy.host.machine import read_limits
from dflash_deploy.plan.base_image import base_images, driver_needed
from dflash_deploy.plan.choose import used_gpus
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
        yield Check("gpu", "no" if wanted or facts.gpu_problem else "warning", saw, driver_advice(facts.gpu_problem))
    elif facts.gpu_problem:
        lost = is_lost(facts.gpu_problem) and not (plan and plan.values.get(VISIBLE))
        saw = f"{_named(facts.gpus)}, but {facts.gpu_problem}"
        yield Check("gpu", "no" if lost else "warning", saw, driver_advice(facts.gpu_problem))
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
        for one in used_gpus(plan.profile, subject.facts) or subject.facts.gpus:
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


BUSY = 50  # percent of utilization from which clocks and link are those of a GPU under load
HOT = 90  # degrees C; GPUs slow down from 83 to 93 on
NARROW = 4  # lanes of PCIe up to which loading, and the work of several GPUs together, take longer
# Shares of the default power limit and of the highest clock below which a GPU is clearly slower than published ones.
CAPPED, SLOW = 0.9, 0.4
# Bits of the reasons for lower clocks (nvml.h): heat, as software or hardware sees it; the power supply.
HEAT, BRAKE = 0x20 | 0x40, 0x80


def condition(subject: DoctorContext) -> Iterator[Check]:
    """What slows the GPUs of the plan down, or makes them unusable."""
    facts, plan = subject.facts, subject.plan
    if plan is not None and plan.engine.cpu:
        return
    for one in (used_gpus(plan.profile, facts) if plan else ()) or facts.gpus:
        name = f"condition of GPU {one.index}" if len(facts.gpus) > 1 else "condition"
        found = [Check(name, status, saw, fix) for status, saw, fix in conditions(one)]
        fine = [Check(name, "ok", "nvidia-smi shows no fault and no limit")] if one.condition else []
        yield from found or fine


def conditions(one: Gpu) -> Iterator[tuple[Status, str, str]]:
    """What slows one GPU down, or makes it unusable: as status, finding and what to do."""
    cells, smi, own = one.condition, f"sudo nvidia-smi -i {one.index}", one.memory is not None
    busy = _number(cells, "utilization.gpu") >= BUSY
    width, widest, speed, fastest = (
        _number(cells, f"pcie.link.{name}") for name in ("width.current", "width.max", "gen.current", "gen.max")
    )
    limit, usual = _number(cells, "power.limit"), _number(cells, "power.default_limit")
    clock, top = _number(cells, "clocks.current.sm"), _number(cells, "clocks.max.sm")
    heat, reasons = _number(cells, "temperature.gpu"), int(_number(cells, "clocks_throttle_reasons.active"))
    if (mode := cells.get("compute_mode", "Default")) != "Default":
        yield "no" if mode == "Prohibited" else "warning", f"its compute mode is {mode}", f"`{smi} -c DEFAULT`"
    if (action := cells.get("gpu_recovery_action", "None")) != "None":
        yield "no", f"the driver asks for a recovery: {action}", f"reboot, or end its processes, then `{smi} -r`"
    if errors := _number(cells, "ecc.errors.uncorrected.volatile.total"):
        yield (
            "warning",
            f"{errors:.0f} uncorrected errors of its memory (ECC)",
            "reboot; `nvidia-smi -q -d ECC` has more",
        )
    if "Yes" in {cells.get("retired_pages.pending"), cells.get("remapped_rows.pending")}:
        yield "warning", "faulty rows of its memory wait for a reset to be replaced", f"reboot, or `{smi} -r`"
    # a GPU without memory of its own is not a PCIe card, and idle cards lower the generation of their link
    if own and ((0 < width <= NARROW and width < widest) or (busy and 0 < speed < fastest)):
        link = f"its PCIe link is x{width:.0f} of x{widest:.0f}, generation {speed:.0f} of {fastest:.0f}"
        yield "warning", link, "use another connector of the board, without a riser; check again while the engine works"
    if 0 < limit < CAPPED * usual:
        saw = f"its power limit is {limit:.0f} W of {usual:.0f} W ({100 * limit / usual:.0f} %)"
        yield "warning", saw, f"`{smi} -pl {usual:.0f}`, unless the limit is wanted"
    if heat >= HOT or reasons & HEAT:
        yield "warning", f"it is too hot ({heat:.0f} °C) and slows down", "check its fans, dust and the air around it"
    if reasons & BRAKE:
        yield "warning", "the power supply slows it down (HW power brake)", "check the power supply and its cables"
    if busy and 0 < clock < SLOW * top:
        saw = f"it runs at {clock:.0f} of {top:.0f} MHz under load, with {cells.get('power.draw', 'unknown')} W"
        unplug = "shut down and unplug the power supply for 60 s, which ends the power-saving state of a DGX Spark"
        yield "warning", saw, f"`{smi} -rgc`; check power and cooling" if own else unplug


def _number(cells: Mapping[str, str], name: str) -> float:
    """The number of a cell, decimal or hexadecimal; 0 if there is none."""
    try:
        return float(int(cells[name], 16) if cells[name].startswith("0x") else cells[name])
    except (KeyError, ValueError):
        return 0.0


HOST_MEMORY = 4 * GIB  # bytes of the system's memory that an engine on a GPU needs at least: vLLM 0.32 idles at 2.5
PROCESSES, FILES = 4096, 4096  # threads of torch and the kernels' compilers; connections, and parts of weights


def limits(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Limits that a native engine inherits. CUDA reserves addresses for the memory of the GPUs and of the system."""
    need, cores = (_cpu_need(plan), subject.facts.cpus) if plan.engine.cpu else (HOST_MEMORY, 2)
    least = {"MemoryMax": need, "CPUQuota": cores, "LimitNPROC": PROCESSES, "LimitNOFILE": FILES}
    for name, limit in read_limits().items() if plan.runtime == "native" else ():
        if limit < (wanted := least.get(name, math.inf)):
            seen, asked = (gib(one) if name == "MemoryMax" else f"{one:.4g}" for one in (limit, wanted))
            fix = f"raise {name}= in the unit of systemd, or the limit of the container or the shell (`ulimit`)"
            yield Check(
                "limits",
                "warning",
                f"{name} of this process is {seen}, and {asked.replace('inf', 'no limit')} is needed",
                fix,
            )


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
