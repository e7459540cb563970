"""Putting a plan together: catalog, then this machine, then what was asked for, then what `.env` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from dflash_deploy.catalog import Catalog, EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.settings import setting_names, template_of
from dflash_deploy.errors import NotPossible, SettingsRefused
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.choose import (
    choose_engine,
    choose_pair,
    choose_profile,
    choose_runtime,
    engines_of,
    fitting_gpus,
)
from dflash_deploy.plan.command import check_values, is_directory
from dflash_deploy.plan.memory import MemoryFit, fit
from dflash_deploy.plan.propose import directory_below, directory_of, propose
from dflash_deploy.plan.result import Plan, Setting
from dflash_deploy.plan.sizes import sizing_of
from dflash_deploy.plan.speed import Speed, predict
from dflash_deploy.plan.wishes import Checkpoints, Choice, RuntimeName
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import DRAFT_TOKENS, MTP, OFF

NEVER_EMPTY = frozenset(
    {
        "DFLASH_PROFILE",
        "DFLASH_PAIR",
        "DFLASH_ENGINE",
        "DFLASH_RUNTIME",
        "DFLASH_BIND",
        "DFLASH_PORT",
        "DFLASH_IMAGE",
        "DFLASH_BASE_IMAGE",
    }
)
"""Settings of this tool: an empty one stands for the planned value. One of the engine leaves the choice to it."""

NO_CHECKPOINTS = Checkpoints()


def decide(facts: HostFacts, choice: Choice, catalog: Catalog, checkpoints: Checkpoints = NO_CHECKPOINTS) -> Plan:
    """Decide everything about one deployment; `rules.plan_deployment` adds the findings.

    Raises UnknownProfile where no profile is named and none fits, UnknownPair, UnknownEngine, NotPossible where they do
    not go together, and SettingsRefused for a value of the wrong kind: what is planned can be written down and started.
    """
    profile = _profile(facts, choice, catalog)
    _refuse_ranks_of_one(profile, choice)
    memory = _memory_of_one_gpu(profile, facts)
    pair, engine = _pair_and_engine(profile, choice, catalog, checkpoints, memory)
    runtime = _runtime(facts, choice, engine)
    proposed = propose(profile, pair, engine, runtime, facts, choice, memory)
    settings = tuple(_settled(proposed, _with_drafter_path(choice.edited, pair, choice.models_dir), engine))
    installed = facts.native_engine if runtime == "native" else None
    plan = Plan(
        profile, pair, engine, installed.version if installed else engine.version, runtime, settings, checkpoints
    )
    check_values(plan.values, engine.engine)
    plan = replace(plan, memory=_memory(plan, memory), speed=tuple(_speeds(plan)))
    return replace(plan, weights_of=_weights_of(plan, catalog))


def _weights_of(plan: Plan, catalog: Catalog) -> tuple[str, ...]:
    """The pairs whose target lies in a directory of that name, as far as the name tells."""
    name = Path(plan.values["MODEL_HOST_PATH"]).name
    return tuple(pair.name for pair in catalog.pairs.values() if (pair.target.repo or "").rsplit("/", 1)[-1] == name)


def _profile(facts: HostFacts, choice: Choice, catalog: Catalog) -> Profile:
    name = _asked(choice.profile, choice, "DFLASH_PROFILE")
    return catalog.profile(name) if name is not None else choose_profile(facts, catalog)


def _asked(wish: str | None, choice: Choice, setting: str) -> str | None:
    """What was asked for, an empty word included: a script's variable may be empty. An empty line of `.env` is none."""
    return wish if wish is not None else choice.edited.get(setting) or None


def _refuse_ranks_of_one(profile: Profile, choice: Choice) -> None:
    asked = choice.node_rank is not None or choice.master_addr is not None
    if asked and profile.hardware.machines == 1:
        raise NotPossible(
            f"profile {profile.name} is one machine, which has no rank and no master",
            hint="leave --node-rank and --master-addr out, or choose a profile of several machines",
        )
    if choice.node_rank is not None and choice.node_rank >= profile.hardware.machines:
        raise NotPossible(
            f"--node-rank {choice.node_rank}: profile {profile.name} has {profile.hardware.machines} machines",
            hint=f"ranks go from 0 to {profile.hardware.machines - 1}",
        )


def _pair_and_engine(
    profile: Profile, choice: Choice, catalog: Catalog, checkpoints: Checkpoints, memory: int
) -> tuple[ModelPair, EngineRelease]:
    """What was asked for where something was, else the profile's own pair and the first engine that serves it."""
    engines = engines_of(profile, catalog, _asked(choice.engine, choice, "DFLASH_ENGINE"))
    model = _asked(choice.model, choice, "DFLASH_PAIR")
    pair = catalog.pair(model) if model is not None else choose_pair(profile, catalog, engines, memory)
    return pair, choose_engine(profile, _as_on_disk(pair, checkpoints), engines)


def _as_on_disk(pair: ModelPair, checkpoints: Checkpoints) -> ModelPair:
    """The pair with the architecture that the header of its GGUF drafter states: it decides upstream or the fork."""
    stated = (checkpoints.drafter or {}).get("general.architecture")
    if not isinstance(stated, str) or stated not in {"dflash", "dflash-draft"}:
        return pair
    drafter = pair.drafter.model_copy(update={"architecture": stated})
    return ModelPair(pair.family, pair.target.model_copy(update={"drafter": drafter}))


def _runtime(facts: HostFacts, choice: Choice, engine: EngineRelease) -> RuntimeName:
    runtime = _runtime_asked(facts, choice, engine)
    if runtime == "native" and engine.native is None:
        raise NotPossible(
            f"{engine.title} runs in a container; the native runtime is for vLLM as it is released",
            hint="choose the runtime compose, or another engine",
        )
    return runtime


def _runtime_asked(facts: HostFacts, choice: Choice, engine: EngineRelease) -> RuntimeName:
    if choice.runtime:
        return choice.runtime
    match choice.edited.get("DFLASH_RUNTIME"):
        case "compose":
            return "compose"
        case "native":
            return "native"
        case None | "":
            return choose_runtime(facts, engine)
        case other:
            raise SettingsRefused(f"DFLASH_RUNTIME={other} is no runtime", hint="write compose or native")


def _memory_of_one_gpu(profile: Profile, facts: HostFacts) -> int:
    """Bytes of the smallest GPU that is used where this machine has them, else those of the profile."""
    gpus = fitting_gpus(profile, facts)
    stated = [gpu.memory for gpu in gpus if gpu.memory]
    if stated:
        return min(stated)
    if facts.memory_total and ((gpus and profile.hardware.unified) or profile.match.gpus == 0):
        return facts.memory_total
    return int(profile.hardware.memory_gib * 2**30)


def _with_drafter_path(edited: Mapping[str, str], pair: ModelPair, models_dir: Path) -> Mapping[str, str]:
    """`.env` with the directory of the drafter it names, where it names one without saying where its weights lie."""
    drafter = edited.get("DFLASH_DRAFTER", "")
    if edited.get("DRAFTER_HOST_PATH") or drafter.lower() in {*OFF, MTP}:
        return edited
    if is_directory(drafter):
        path = drafter
    elif drafter == pair.drafter.repo:
        path = directory_of(pair.drafter, models_dir)
    else:
        path = directory_below(models_dir, drafter)
    return {**edited, "DRAFTER_HOST_PATH": path}


def _settled(proposed: Mapping[str, Setting], edited: Mapping[str, str], engine: EngineRelease) -> Iterator[Setting]:
    """Each setting in the template's order; what `.env` says differently wins, and says so."""
    known = setting_names(template_of(engine.engine))
    others = dict.fromkeys(name for name in (*proposed, *edited) if name not in known)
    for name in (*known, *others):
        if name in SECRET_NAMES:
            continue
        setting = proposed.get(name, Setting(name, "", "default", "left to the engine"))
        if name in NEVER_EMPTY and not edited.get(name):
            yield setting
            continue
        if name in edited and edited[name] != setting.value:
            reason = f".env says so; the plan would say {setting.value}" if setting.value else ".env says so"
            setting = Setting(name, edited[name], ".env", reason)
        yield setting


def _memory(plan: Plan, memory: int) -> MemoryFit:
    draft_tokens = _draft_tokens(plan)
    sizing = sizing_of(plan.values, plan.profile, plan.pair, plan.engine, memory=memory, draft_tokens=draft_tokens)
    return fit(plan.pair, replace(sizing, own_head=plan.own_head))


def _draft_tokens(plan: Plan) -> int:
    return int(plan.values.get("DFLASH_NUM_SPEC_TOKENS") or DRAFT_TOKENS) if plan.speculating else 0


def _speeds(plan: Plan) -> Iterator[Speed]:
    if plan.own_head:
        # the model is one of DFlash
        return
    draft_tokens = _draft_tokens(plan)
    streams = int(plan.values.get("MAX_NUM_SEQS") or 4)
    for concurrency in sorted({1, streams}):
        speed = predict(plan.profile, plan.pair, concurrency=concurrency, draft_tokens=draft_tokens)
        if speed is not None:
            yield speed
