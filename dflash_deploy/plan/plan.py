"""Assemble a plan: the catalog, this machine, the options of the command, then the lines of `.env`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.recipes import check_recipe, recipe_of
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.errors import NotPossible
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.choose import (
    choose_engine,
    choose_pair,
    choose_profile,
    choose_runtime,
    engines_here,
    engines_of,
    is_light_here,
    published_with,
    used_gpus,
    usual_engine_unfit_here,
)
from dflash_deploy.plan.command import is_directory, read_settings, refusals_of_env
from dflash_deploy.plan.copies import gpus_of_one
from dflash_deploy.plan.memory import GIB, MemoryFit, fit
from dflash_deploy.plan.propose import Basis, directory_below, directory_of, propose
from dflash_deploy.plan.result import RUNTIMES, Checkpoints, Choice, Decision, Plan, RuntimeName
from dflash_deploy.plan.sizes import USUAL_SEQUENCES, sizing_of
from dflash_deploy.plan.speed import USUAL_MTP_TOKENS, Speed, predict
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP, OFF

# Settings of this program: an empty one means the planned value. An empty engine setting leaves the choice to it.
NEVER_EMPTY = frozenset(
    field.name
    for field in (
        Settings.dflash_profile,
        Settings.dflash_pair,
        Settings.dflash_engine,
        Settings.dflash_runtime,
        Settings.dflash_bind,
        Settings.dflash_port,
        Settings.dflash_image,
        Settings.dflash_base_image,
    )
)

NO_CHECKPOINTS = Checkpoints()
SHOWN = (1, 4, 8)  # numbers of requests that the speed is shown for, beside the planned one


def decide(facts: HostFacts, choice: Choice, catalog: Catalog, checkpoints: Checkpoints = NO_CHECKPOINTS) -> Plan:
    """Decide everything about one deployment; `rules.plan_deployment` adds the findings.

    Raises UnknownProfile if no profile is named and none fits; UnknownPair; UnknownEngine; UnknownRecipe; NotPossible
    if they do not fit together; SettingsRefused for a value of the wrong kind, so that every plan can be written and
    started.
    """
    profile = _profile(facts, choice, catalog)
    _refuse_ranks_of_one(profile, choice)
    recipe = _recipe(profile, choice, catalog)
    if recipe is not None:
        profile, choice = profile.following(recipe), replace(choice, model=recipe.pair, engine=recipe.engine)
    pair, engine = _pair_and_engine(profile, choice, catalog, checkpoints, facts)
    if pair.drafter.absent or choice.mtp:
        choice = replace(choice, drafter=False)
    runtime = _runtime(facts, choice, engine)
    if checkpoints.target_bytes:
        target = pair.target.model_copy(update={"bytes": checkpoints.target_bytes})
        pair = ModelPair(pair.family, target)
    memory = _memory_of_one_gpu(profile, facts)
    preferred = usual_engine_unfit_here(profile, facts, catalog, engine, runtime, memory, choice)
    published = published_with(profile, pair, engine, catalog)
    proposed = propose(Basis(profile, pair, engine, runtime, facts, choice, memory, preferred, recipe, published))
    decisions = tuple(_settled(proposed, _with_drafter_path(choice.edited, pair, choice.models_dir), engine))
    settings = read_settings({decision.name: decision.value for decision in decisions}, engine.kind)
    installed = facts.native_engines.get(engine.engine) if runtime == "native" else None
    version = installed.version if installed else engine.version
    plan = Plan(profile, pair, engine, version, runtime, decisions, settings, checkpoints)
    plan = replace(plan, memory=_memory(plan, memory), speed=tuple(_speeds(plan)))
    name = Path(plan.settings.model_host_path).name
    repos = {pair.name: pair.target.repo or "" for pair in catalog.pairs.values()}
    return replace(plan, weights_of=tuple(pair for pair, repo in repos.items() if repo.rsplit("/", 1)[-1] == name))


def _profile(facts: HostFacts, choice: Choice, catalog: Catalog) -> Profile:
    name = _asked(choice.profile, choice, Settings.dflash_profile)
    return catalog.profile(name) if name is not None else choose_profile(facts, catalog)


def _recipe(profile: Profile, choice: Choice, catalog: Catalog) -> Recipe | None:
    """The recipe that is asked for. Raises UnknownRecipe; NotPossible if another model or engine is asked for too."""
    if choice.recipe is None:
        return None
    recipe = recipe_of(profile, choice.recipe, catalog)
    check_recipe(recipe, catalog, model=choice.model, engine=choice.engine)
    return recipe


def _asked(wish: str | None, choice: Choice, field: Field[str]) -> str | None:
    """The option, an empty one included (a script's variable may be empty); else the line of `.env`, unless empty."""
    return wish if wish is not None else choice.edited.get(field.name) or None


def _refuse_ranks_of_one(profile: Profile, choice: Choice) -> None:
    asked = choice.node_rank is not None or choice.master_addr is not None
    if asked and profile.hardware.machines == 1:
        raise NotPossible(
            f"profile {profile.name} is for one machine, which has no rank and no master",
            hint="remove --node-rank and --master-addr, or choose a profile for several machines",
        )
    if choice.node_rank is not None and choice.node_rank >= profile.hardware.machines:
        raise NotPossible(
            f"`--node-rank {choice.node_rank}` is not a rank: profile {profile.name} has {profile.hardware.machines} "
            f"machines (0-{profile.hardware.machines - 1})",
            hint="rank 0 answers requests; give each machine a rank of its own",
        )


def _pair_and_engine(
    profile: Profile, choice: Choice, catalog: Catalog, checkpoints: Checkpoints, facts: HostFacts
) -> tuple[ModelPair, EngineRelease]:
    """The pair and engine that were asked for, else the best pair and the first engine that serves it.

    Engines that this machine can run as it is come first, then a small one that it can install, if one of them serves
    the best model, in any quantization.
    """
    engines = engines_of(profile, catalog, _asked(choice.engine, choice, Settings.dflash_engine))
    model = _asked(choice.model, choice, Settings.dflash_pair)
    memory, asked = _memory_of_one_gpu(profile, facts), _runtime_asked(choice)
    usual = catalog.pair(model) if model is not None else choose_pair(profile, catalog, engines, choice, memory)

    def served_by(candidates: Sequence[EngineRelease]) -> tuple[ModelPair, EngineRelease]:
        is_usual = model is not None or list(candidates) == list(engines)
        pair = usual if is_usual else choose_pair(profile, catalog, candidates, choice, memory)
        return pair, choose_engine(
            profile, _as_on_disk(pair, checkpoints), candidates, gpus=gpus_of_one(profile, choice)
        )

    light = [engine for engine in engines if asked is None and is_light_here(facts, engine)]
    for candidates in (engines_here(facts, engines, asked), light):
        with suppress(NotPossible):
            pair, engine = served_by(candidates)
            if pair.family == usual.family:
                return pair, engine
    return served_by(engines)


def _as_on_disk(pair: ModelPair, checkpoints: Checkpoints) -> ModelPair:
    """The pair with the architecture in the header of its GGUF drafter, which decides between upstream and the fork."""
    architecture = (checkpoints.drafter or {}).get("general.architecture")
    # a tuple: a damaged header may hold a list, which a set cannot be asked for
    if architecture not in ("dflash", "dflash-draft"):
        return pair
    drafter = pair.drafter.model_copy(update={"architecture": architecture})
    return ModelPair(pair.family, pair.target.model_copy(update={"drafter": drafter}))


def _runtime(facts: HostFacts, choice: Choice, engine: EngineRelease) -> RuntimeName:
    runtime = _runtime_asked(choice) or choose_runtime(facts, engine)
    if runtime == "native" and engine.native is None:
        raise NotPossible(
            f"{engine.title} runs in a container; the native runtime has stock vLLM, and llama.cpp on processors",
            hint="choose `--runtime compose`, or another engine",
        )
    return runtime


def _runtime_asked(choice: Choice) -> RuntimeName | None:
    if choice.runtime:
        return choice.runtime
    with refusals_of_env():
        written = Settings.dflash_runtime.read(choice.edited)
    return next((name for name in RUNTIMES if name == written), None)


def _memory_of_one_gpu(profile: Profile, facts: HostFacts) -> int:
    """Bytes of the smallest used GPU of this machine, else of the profile's."""
    gpus = used_gpus(profile, facts)
    known = [gpu.memory for gpu in gpus if gpu.memory]
    if known:
        return min(known)
    if facts.memory_total and ((gpus and profile.hardware.unified) or profile.match.gpus == 0):
        return facts.memory_total
    return int(profile.hardware.memory_gib * GIB)


def _with_drafter_path(edited: Mapping[str, str], pair: ModelPair, models_dir: Path) -> Mapping[str, str]:
    """`.env` with the directory of the drafter's weights, if it names a drafter and no directory."""
    drafter = Settings.dflash_drafter.text(edited)
    if Settings.drafter_host_path.text(edited) or drafter.lower() in {*OFF, MTP}:
        return edited
    if is_directory(drafter):
        path = drafter
    elif drafter == pair.drafter.repo:
        path = directory_of(pair.drafter, models_dir)
    else:
        path = directory_below(models_dir, drafter)
    return {**edited, Settings.drafter_host_path.name: path}


def _settled(proposed: Mapping[str, Decision], edited: Mapping[str, str], engine: EngineRelease) -> Iterator[Decision]:
    """Each setting in the template's order. A different value in `.env` overrides the proposal."""
    known = setting_names(engine.engine)
    others = dict.fromkeys(name for name in (*proposed, *edited) if name not in known)
    for name in (*known, *others):
        if name in SECRET_NAMES:
            continue
        decision = proposed.get(name, Decision(name, "", "default", "the engine chooses"))
        if name in NEVER_EMPTY and not edited.get(name):
            yield decision
            continue
        if name in edited and edited[name] != decision.value:
            reason = f"set in .env; the plan proposes {decision.value}" if decision.value else "set in .env"
            if name == Settings.dflash_drafter.name and not edited[name]:
                reason = f"empty in .env: no drafter; the plan proposes {decision.value}"
            decision = Decision(name, edited[name], ".env", reason)
        yield decision


def _memory(plan: Plan, memory: int) -> MemoryFit:
    draft_tokens = plan.settings.draft_tokens
    sizing = sizing_of(plan.settings, plan.profile, plan.pair, plan.engine, memory=memory, draft_tokens=draft_tokens)
    return fit(plan.pair, replace(sizing, uses_mtp_head=plan.uses_mtp_head))


def _speeds(plan: Plan) -> Iterator[Speed]:
    """At the concurrencies of SHOWN, and with as many requests as are decoded at the same time. Others wait."""
    copies, sequences = plan.settings.data_parallel_size, plan.settings.max_num_seqs or USUAL_SEQUENCES
    drafts = plan.settings.draft_tokens
    # of the target's MTP head, to compare the drafter with
    mtp = drafts if plan.uses_mtp_head else USUAL_MTP_TOKENS if plan.drafting and plan.pair.family.mtp_acceptance else 0
    for concurrency in sorted({*SHOWN, sequences * copies}):
        used = min(copies, concurrency)
        speed = predict(
            plan.profile,
            plan.pair,
            concurrency=min(-(-concurrency // used), sequences),
            draft_tokens=0 if plan.uses_mtp_head else drafts,
            mtp_tokens=mtp,
            gpus=(plan.settings.tensor_parallel_size or 1) if copies > 1 else None,
            engine=plan.engine,
        )
        if speed is not None:
            yield replace(speed.of_copies(used), concurrency=concurrency)
