"""Several engines on one machine: how many, what each of them gets, and why not one engine over all GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.host.gpu import VISIBLE, Thread
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.choose import gpu_fits
from dflash_deploy.plan.command import read_settings
from dflash_deploy.plan.memory import shares_of_cores
from dflash_deploy.plan.result import AUTO, Choice, Decision, Plan, decided
from dflash_deploy.plan.sizes import USUAL_SEQUENCES, fits_at_all, machine_settings
from dflash_deploy.plan.speed import Speed, predict
from dflash_deploy.serve.settings import ROUTER_PORTS, Settings

if TYPE_CHECKING:
    from dflash_deploy.serve.field import Field

LOOPBACK = "127.0.0.1"

IN_ORDER = "CUDA_DEVICE_ORDER"
"""The variables that name an engine's GPUs, by the numbers of nvidia-smi."""


def router_port(port: int) -> int:
    """The port of the router behind the door of an endpoint, on 127.0.0.1; its metrics are on the next one."""
    return port + 1


def router_metrics_port(port: int) -> int:
    """The port of the router's metrics, on 127.0.0.1."""
    return router_port(port) + 1


def engine_port(port: int, number: int) -> int:
    """The port of one of several engines of an endpoint, on 127.0.0.1. `number` counts from 1."""
    return port + ROUTER_PORTS + number


@dataclass(frozen=True)
class Share:
    """How a machine is shared out: `engines` of them, each on `gpus` GPUs (0 on processors), and why."""

    engines: int
    gpus: int
    origin: str
    reason: str


def share_of(
    profile: Profile, pair: ModelPair, engine: EngineRelease, facts: HostFacts, choice: Choice, memory: int
) -> Share | None:
    """How many engines are proposed; `None` for a single one. `memory` is that of one GPU, in bytes."""
    asked = choice.replicas if choice.replicas is not None else _written(choice, Settings.replicas)
    if asked in {None, 1} or profile.hardware.machines > 1:
        return Share(1, 0, "--replicas", "as requested") if choice.replicas == 1 else None
    origin = "--replicas" if choice.replicas is not None else ".env"
    if profile.match.gpus == 0:
        count = facts.numa_nodes if asked == AUTO else int(asked or 1)
        each = f"each with {max(1, facts.cpus // count)} of {facts.cpus} processor cores"
        why = f"one engine for each of {count} NUMA nodes, as vLLM binds them" if asked == AUTO else each
        return Share(count, 0, origin, why)
    available = len(gpus_of(profile, facts)) or profile.match.gpus
    if asked == AUTO:
        gpus = _least_gpus(profile, pair, engine, available, memory)
        engines = available // gpus
    else:
        engines = int(asked or 1)
        size = _written(choice, Settings.tensor_parallel_size)
        wanted = size or machine_settings(profile, engine).tensor_parallel_size or 1
        gpus = wanted if engines * wanted <= available else max(1, available // engines)
    return Share(engines, gpus, origin, _compared(profile, pair, engine, engines, gpus, choice))


def gpus_of_one(profile: Profile, choice: Choice) -> int | None:
    """The GPUs of one engine, if options or `.env` make them fewer than the profile's; else `None`."""
    if profile.hardware.machines > 1:
        return None
    asked = choice.replicas if choice.replicas is not None else _written(choice, Settings.replicas)
    size = _written(choice, Settings.tensor_parallel_size)
    each = size or (profile.gpus // asked if isinstance(asked, int) and asked else profile.gpus)
    return each if 0 < each < profile.gpus else None


def _written(choice: Choice, field: Field[Any]) -> int | None:
    """The number in `.env`; `None` if there is none, or one that the settings refuse."""
    text = choice.edited.get(field.name, "").strip()
    return int(text) if text.isdecimal() and len(text) < 4 else None


def gpus_of(profile: Profile, facts: HostFacts) -> tuple[int, ...]:
    """The numbers of all GPUs of this machine that are of the profile's kind."""
    return tuple(gpu.index for gpu in facts.gpus if gpu_fits(profile.match, gpu))


def decisions_of(share: Share, profile: Profile, engine: EngineRelease, facts: HostFacts) -> Iterator[Decision]:
    """The settings that share a machine out."""
    yield decided(Settings.replicas, share.engines, share.origin, share.reason)
    if not share.gpus:
        return
    if engine.kind.knows(Settings.tensor_parallel_size):
        reason = f"the GPUs of each of {share.engines} engines"
        yield decided(Settings.tensor_parallel_size, share.gpus, Settings.replicas.name, reason)
    used = gpus_of(profile, facts)[: share.engines * share.gpus]
    if used:
        reason = "the GPUs that the engines share out among them"
        yield Decision(VISIBLE, ",".join(map(str, used)), "hardware", reason)
        yield Decision(IN_ORDER, "PCI_BUS_ID", "hardware", "the order of nvidia-smi's numbers")


def member_of(plan: Plan, number: int, threads: Sequence[Thread] = ()) -> Plan:
    """The plan of one of several engines, counted from 1: its own private address, and its own GPUs or cores.

    `threads` are those of all engines together, on a machine without GPUs.
    """
    settings = plan.settings
    own: dict[str, str] = {
        Settings.dflash_bind.name: LOOPBACK,
        Settings.dflash_port.name: str(engine_port(settings.dflash_port, number)),
        # none of these changes an engine
        Settings.replicas.name: "",
        Settings.router_engines.name: "",
        Settings.drain_seconds.name: "",
        Settings.dflash_domain.name: "",
        **_devices(plan, number),
        **_cores(plan, number, threads),
    }
    reason = f"engine {number} of {settings.replicas}"
    decisions = tuple(
        replace(decision, value=own[decision.name], origin=Settings.replicas.name, reason=reason)
        if decision.name in own
        else decision
        for decision in plan.decisions
    )
    known = {decision.name for decision in decisions}
    added = (Decision(name, value, Settings.replicas.name, reason) for name, value in own.items() if name not in known)
    every = (*decisions, *added)
    read = read_settings({decision.name: decision.value for decision in every}, plan.engine.kind)
    return replace(plan, decisions=every, settings=read)


def gpus_of_member(plan: Plan, number: int) -> tuple[str, ...]:
    """The GPUs of one of several engines, as CUDA_VISIBLE_DEVICES names them; empty on processors, and for all GPUs."""
    if plan.engine.cpu or plan.profile.match.gpus == 0 or _is_alone(plan):
        return ()
    each = plan.settings.tensor_parallel_size or 1
    named = [name.strip() for name in plan.values.get(VISIBLE, "").split(",") if name.strip()]
    every = named or [str(index) for index in range(each * plan.settings.replicas)]
    return tuple(every[(number - 1) * each : number * each])


def _is_alone(plan: Plan) -> bool:
    """Whether the other engines of the router are on other machines, so that this one has all of its own."""
    return plan.settings.replicas == 1 and bool(plan.settings.router_engines)


def _devices(plan: Plan, number: int) -> Mapping[str, str]:
    gpus = gpus_of_member(plan, number)
    if not gpus:
        return {}
    if plan.runtime == "compose":
        # the container has these GPUs only, and counts them from 0
        return {VISIBLE: "", IN_ORDER: ""}
    return {VISIBLE: ",".join(gpus), IN_ORDER: "PCI_BUS_ID"}


def _cores(plan: Plan, number: int, threads: Sequence[Thread]) -> Mapping[str, str]:
    """Two engines without cores of their own bind their threads to the same ones."""
    shares = () if plan.profile.match.gpus or _is_alone(plan) else shares_of_cores(threads, plan.settings.replicas)
    # an engine above the number that is set still runs until `up` ends it
    return {Settings.dflash_cores.name: ",".join(map(str, shares[number - 1]))} if number <= len(shares) else {}


def _least_gpus(profile: Profile, pair: ModelPair, engine: EngineRelease, available: int, memory: int) -> int:
    """The fewest GPUs that hold the model: one, or a group that divides the machine."""
    for gpus in range(1, available + 1):
        if available % gpus == 0 and fits_at_all(profile, pair, engine, memory=memory, gpus=gpus):
            return gpus
    return available


def _compared(profile: Profile, pair: ModelPair, engine: EngineRelease, engines: int, gpus: int, choice: Choice) -> str:
    """Why replicas, with the expected figures of both."""
    chosen = machine_settings(profile, engine)
    sequences = choice.concurrency or chosen.max_num_seqs or USUAL_SEQUENCES
    drafts = min(chosen.dflash_num_spec_tokens or pair.drafter.most_draft_tokens, pair.drafter.most_draft_tokens)

    def figures(gpus_of_one: int, concurrency: int) -> Speed | None:
        tokens = drafts if choice.drafter else 0
        return predict(profile, pair, concurrency=concurrency, draft_tokens=tokens, gpus=gpus_of_one)

    if engines == 1:
        return f"the model needs all {gpus} GPUs of this machine" if gpus > 1 else "this machine has one GPU"
    on = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    one, full = figures(gpus, 1), figures(gpus, sequences)
    over_one, over_full = figures(gpus * engines, 1), figures(gpus * engines, sequences * engines)
    reason = f"{engines} engines on {on} each, behind one router; one that fails leaves the others"
    if one is None or full is None or over_one is None or over_full is None:
        return reason
    return (
        f"{reason}. Expected: {_middle(one):.0f} tokens/s for one request and {engines * _middle(full):.0f} for "
        f"{sequences * engines}; one engine over {gpus * engines} GPUs: {_middle(over_one):.0f} and "
        f"{_middle(over_full):.0f}, less the time in which its GPUs wait for each other, which the speed model does "
        f"not know. For a single user choose that: {Settings.replicas}=1"
    )


def _middle(speed: Speed) -> float:
    low, high = speed.dflash or speed.plain
    return (low + high) / 2
