"""Putting a plan together: catalog, then this machine, then what was asked for, then what `.env` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from dflash_deploy.assets import asset, build_digest
from dflash_deploy.catalog import Catalog, EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.models import Weights
from dflash_deploy.catalog.schema import Choice as CatalogChoice
from dflash_deploy.catalog.settings import setting_names, template_of
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.choose import (
    choose_engine,
    choose_pair,
    choose_profile,
    choose_runtime,
    engines_of,
    fitting_gpus,
)
from dflash_deploy.plan.command import check_values, in_home, is_directory
from dflash_deploy.plan.memory import MemoryFit, Sizing, fit
from dflash_deploy.plan.result import Plan, Setting
from dflash_deploy.plan.rules import judge
from dflash_deploy.plan.sizes import CPU_BLOCK, LLAMACPP_STATES, Sizer, base_sizing
from dflash_deploy.plan.speed import Speed, predict
from dflash_deploy.plan.wishes import GOALS, Checkpoints, Choice, Goal, RuntimeName
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import OFF

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


def plan_deployment(
    facts: HostFacts, choice: Choice, catalog: Catalog, checkpoints: Checkpoints = NO_CHECKPOINTS
) -> Plan:
    """Decide everything about one deployment.

    Raises UnknownProfile where no profile is named and none fits, UnknownPair, UnknownEngine, NotPossible where they do
    not go together, and SettingsRefused for a value of the wrong kind: what is planned can be written down and started.
    """
    profile = _profile(facts, choice, catalog)
    pair, engine = _pair_and_engine(profile, choice, catalog, checkpoints)
    runtime = _runtime(facts, choice, engine)
    memory = _memory_of_one_gpu(profile, facts)
    proposed = {
        setting.name: setting
        for setting in (
            *_identity(profile, pair, engine, runtime, choice),
            *_endpoint(choice),
            *_weights(pair, choice),
            *_image(profile, engine, facts),
            *_of_the_model(pair, engine, choice),
            *_of_the_machine(profile, pair, engine, facts, choice),
            *_sized(profile, pair, engine, memory, choice),
        )
    }
    settings = tuple(_settled(proposed, _with_drafter_path(choice.edited, pair, choice.models_dir), engine))
    installed = facts.native_engine if runtime == "native" else None
    plan = Plan(
        profile, pair, engine, installed.version if installed else engine.version, runtime, settings, checkpoints
    )
    check_values(plan.values, engine.engine)
    plan = replace(plan, memory=_memory(plan, memory), speed=tuple(_speeds(plan)))
    return replace(plan, findings=tuple(judge(plan, facts)))


def _profile(facts: HostFacts, choice: Choice, catalog: Catalog) -> Profile:
    name = choice.profile or choice.edited.get("DFLASH_PROFILE")
    return catalog.profile(name) if name else choose_profile(facts, catalog)


def _pair_and_engine(
    profile: Profile, choice: Choice, catalog: Catalog, checkpoints: Checkpoints
) -> tuple[ModelPair, EngineRelease]:
    """What was asked for where something was, else the profile's own pair and the first engine that serves it."""
    engines = engines_of(profile, catalog, choice.engine or choice.edited.get("DFLASH_ENGINE") or None)
    model = choice.model or choice.edited.get("DFLASH_PAIR")
    pair = catalog.pair(model) if model else choose_pair(profile, catalog, engines)
    return pair, choose_engine(profile, _as_on_disk(pair, checkpoints), engines)


def _as_on_disk(pair: ModelPair, checkpoints: Checkpoints) -> ModelPair:
    """The pair with the architecture that the header of its GGUF drafter states: it decides upstream or the fork."""
    stated = (checkpoints.drafter or {}).get("general.architecture")
    if not isinstance(stated, str) or stated not in {"dflash", "dflash-draft"}:
        return pair
    drafter = pair.drafter.model_copy(update={"architecture": stated})
    return ModelPair(pair.family, pair.target.model_copy(update={"drafter": drafter}))


def _runtime(facts: HostFacts, choice: Choice, engine: EngineRelease) -> RuntimeName:
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


def _identity(
    profile: Profile, pair: ModelPair, engine: EngineRelease, runtime: RuntimeName, choice: Choice
) -> Iterator[Setting]:
    yield Setting("DFLASH_PROFILE", profile.name, "--profile" if choice.profile else "hardware", profile.title)
    yield Setting("DFLASH_PAIR", pair.name, "--model" if choice.model else f"profile {profile.name}", pair.title)
    yield Setting(
        "DFLASH_ENGINE", engine.name, "--engine" if choice.engine else f"profile {profile.name}", engine.title
    )
    yield Setting("DFLASH_RUNTIME", runtime, "init", "how the engine is run on this machine")
    goal = _goal(choice)
    if goal:
        yield Setting("DFLASH_GOAL", goal, "--goal", "what the sizes were chosen for")


def _endpoint(choice: Choice) -> Iterator[Setting]:
    host, port = choice.host or "127.0.0.1", choice.port or 8000
    yield Setting(
        "DFLASH_BIND", host, "--host" if choice.host else "default", "this machine alone unless asked otherwise"
    )
    yield Setting("DFLASH_PORT", str(port), "--port" if choice.port else "default", "where clients find the endpoint")


def _weights(pair: ModelPair, choice: Choice) -> Iterator[Setting]:
    origin, models_dir = f"pair {pair.name}", choice.models_dir
    yield Setting("MODEL_HOST_PATH", _directory(pair.target, models_dir), origin, "where the target's weights lie")
    if pair.target.file:
        yield Setting("MODEL_FILE", pair.target.file, origin, "the one file of the repository that is used")
    if pair.target.projector:
        yield Setting("MMPROJ_FILE", pair.target.projector, origin, "the vision tower, beside the target")
    if not choice.drafter:
        yield Setting("DFLASH_DRAFTER", "off", "--no-drafter", "plain decoding, to compare with")
        return
    drafter = _directory(pair.drafter, models_dir)
    yield Setting("DFLASH_DRAFTER", pair.drafter.repo or drafter, origin, "the drafter that belongs to this target")
    yield Setting("DRAFTER_HOST_PATH", drafter, origin, "where the drafter's weights lie")
    if pair.drafter.file:
        yield Setting("DRAFTER_FILE", pair.drafter.file, origin, "the one file of the repository that is used")


def _directory(weights: Weights, models_dir: Path) -> str:
    if weights.bundled is not None:
        return str(asset(weights.bundled))
    assert weights.repo is not None  # noqa: S101 - the catalog's schema test holds it
    # two revisions of one repository may both be wanted
    suffix = f"-{weights.revision[:8]}" if weights.revision else ""
    return _below(models_dir, weights.repo) + suffix


def _below(models_dir: Path, repo: str) -> str:
    """Where the weights of a repository lie: a directory of its name, without the owner."""
    return str(in_home(models_dir).absolute() / repo.rsplit("/", 1)[-1])


def _image(profile: Profile, engine: EngineRelease, facts: HostFacts) -> Iterator[Setting]:
    origin = f"engine {engine.name}"
    architecture = profile.hardware.architecture or facts.architecture
    base = next((image for name, image in engine.base_images.items() if name == architecture), None)
    base = base or next(iter(engine.base_images.values()))
    image = f"{engine.image}-{build_digest(engine.engine)}"
    built = f"built here from images/{engine.engine}, which the last digits stand for, if absent"
    yield Setting("DFLASH_IMAGE", image, origin, built)
    yield Setting("DFLASH_BASE_IMAGE", base.tag, origin, "what that image is built on")


def _of_the_model(pair: ModelPair, engine: EngineRelease, choice: Choice) -> Iterator[Setting]:
    """Names, draft tokens, parsers and thinking, as the model's family has them."""
    origin, family = f"pair {pair.name}", pair.family
    yield Setting("SERVED_MODEL_NAME", pair.target.served_name, origin, "the name under which clients ask for it")
    if choice.drafter:
        reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
        yield Setting("DFLASH_NUM_SPEC_TOKENS", str(pair.drafter.block_size - 1), origin, reason)
    if engine.engine in {"vllm", "sglang"}:
        if family.reasoning_parser:
            why = "separates thinking from the answer; without it the tags stand in the answer"
            yield Setting("REASONING_PARSER", engine.parser(family.reasoning_parser), origin, why)
        if family.tool_call_parser:
            parser = engine.parser(family.tool_call_parser)
            yield Setting("TOOL_CALL_PARSER", parser, origin, "reads the model's form of tool calls")
    if family.thinking == "on" and family.drafter_thinking is False and choice.drafter:
        why = "the drafter was trained without thinking, and is rejected where the target thinks"
        yield Setting("ENABLE_THINKING", "off", origin, why)
    yield from _chosen({**family.settings, **pair.target.settings}, origin)


def _of_the_machine(
    profile: Profile, pair: ModelPair, engine: EngineRelease, facts: HostFacts, choice: Choice
) -> Iterator[Setting]:
    for source, settings in _machine_settings(profile, engine):
        known = setting_names(template_of(engine.engine))
        for setting in _chosen(settings, source):
            if setting.name == "LIMIT_IMAGES_PER_PROMPT" and not pair.sees:
                continue
            if setting.name in known or setting.name.startswith(("NCCL_", "GLOO_")):
                yield setting
    if profile.match.gpus and profile.hardware.machines == 1:
        yield from _subset(profile, facts)
    if profile.hardware.machines > 1:
        rank, master = choice.node_rank or 0, choice.master_addr
        yield Setting(
            "NODE_RANK", str(rank), "--node-rank" if rank else "default", "0 answers requests, others compute"
        )
        if master:
            yield Setting("MASTER_ADDR", master, "--master-addr", "where the machines find rank 0")


def _machine_settings(profile: Profile, engine: EngineRelease) -> Iterator[tuple[str, Mapping[str, CatalogChoice]]]:
    yield f"profile {profile.name}", profile.settings
    for chosen in profile.engines:
        if chosen.release == engine.name:
            yield f"profile {profile.name} for {engine.name}", chosen.settings


def _subset(profile: Profile, facts: HostFacts) -> Iterator[Setting]:
    """Which GPUs, where the machine has others too."""
    used = fitting_gpus(profile, facts)
    if used and len(used) < len(facts.gpus):
        numbers = ",".join(str(gpu.index) for gpu in used)
        yield Setting("CUDA_VISIBLE_DEVICES", numbers, "hardware", f"the {used[0].name} among this machine's GPUs")
        yield Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "hardware", "the numbers that nvidia-smi counts by")


def _sized(profile: Profile, pair: ModelPair, engine: EngineRelease, memory: int, choice: Choice) -> Iterator[Setting]:
    """Draft tokens and sizes that differ from the profile's, by wish or by memory."""
    chosen: dict[str, CatalogChoice] = {}
    for _, settings in _machine_settings(profile, engine):
        chosen |= settings
    most = pair.drafter.block_size - 1
    wanted = chosen.get("DFLASH_NUM_SPEC_TOKENS")
    draft_tokens = min(int(wanted.value), most) if wanted is not None else most
    if wanted is not None and choice.drafter and draft_tokens < int(wanted.value):
        reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
        yield Setting("DFLASH_NUM_SPEC_TOKENS", str(draft_tokens), f"pair {pair.name}", reason)
    sizing = base_sizing(
        profile, engine, memory=memory, chosen=chosen, draft_tokens=draft_tokens if choice.drafter else 0
    )
    if pair.target.forced_fp8_kv and sizing.kv_cache_dtype == "auto":
        sizing = replace(sizing, kv_cache_dtype="fp8")
    yield from Sizer(profile, pair, engine, sizing).decide(choice, _goal(choice))


def _goal(choice: Choice) -> Goal | None:
    """The goal that was asked for. One in `.env` has been answered: the sizes stand beside it."""
    written = choice.edited.get("DFLASH_GOAL")
    if written and written not in GOALS:
        raise SettingsRefused(f"DFLASH_GOAL={written} is no goal", hint=f"there are {', '.join(GOALS)}")
    return choice.goal or next((goal for goal in GOALS if goal == written), None)


def _chosen(choices: Mapping[str, CatalogChoice], origin: str) -> Iterator[Setting]:
    for name, chosen in choices.items():
        yield Setting(name, str(chosen.value), origin, chosen.reason, chosen.source)


def _with_drafter_path(edited: Mapping[str, str], pair: ModelPair, models_dir: Path) -> Mapping[str, str]:
    """`.env` with the directory of the drafter it names, where it names one without saying where its weights lie."""
    drafter = edited.get("DFLASH_DRAFTER", "")
    if edited.get("DRAFTER_HOST_PATH") or drafter.lower() in OFF:
        return edited
    if is_directory(drafter):
        path = drafter
    elif drafter == pair.drafter.repo:
        path = _directory(pair.drafter, models_dir)
    else:
        path = _below(models_dir, drafter)
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


def sizing_of(plan: Plan, memory: int) -> Sizing:
    """The sizes that a plan's settings come to; `memory` is that of one GPU in bytes."""
    values = plan.values

    def number(name: str, otherwise: int) -> int:
        return int(values.get(name) or otherwise)

    space = values.get("VLLM_CPU_KVCACHE_SPACE")
    kv_cache_dtype = values.get("KV_CACHE_DTYPE") or "auto"
    return Sizing(
        memory=memory,
        utilisation=float(values.get("GPU_MEMORY_UTILIZATION") or 0.92),
        gpus=number("TENSOR_PARALLEL_SIZE", 1),
        max_model_len=number("MAX_MODEL_LEN", plan.pair.shape.context),
        max_num_seqs=number("MAX_NUM_SEQS", 4),
        max_num_batched_tokens=number("MAX_NUM_BATCHED_TOKENS", 8192),
        draft_tokens=number("DFLASH_NUM_SPEC_TOKENS", 15) if plan.drafting else 0,
        kv_cache_dtype="fp8" if plan.pair.target.forced_fp8_kv and kv_cache_dtype == "auto" else kv_cache_dtype,
        prefix_caching=(values.get("ENABLE_PREFIX_CACHING") or "off").lower() in {"on", "1", "true", "yes"},
        block_tokens=CPU_BLOCK if plan.engine.cpu else 16,
        states=LLAMACPP_STATES if plan.engine.engine.startswith("llamacpp") else None,
        reserve_within=plan.engine.engine != "sglang",
        cache_bytes=int(float(space) * 2**30) if space and plan.engine.cpu else None,
    )


def _memory(plan: Plan, memory: int) -> MemoryFit:
    return fit(plan.pair, sizing_of(plan, memory))


def _speeds(plan: Plan) -> Iterator[Speed]:
    draft_tokens = int(plan.values.get("DFLASH_NUM_SPEC_TOKENS") or 15) if plan.drafting else 0
    streams = int(plan.values.get("MAX_NUM_SEQS") or 4)
    for concurrency in sorted({1, streams}):
        speed = predict(plan.profile, plan.pair, concurrency=concurrency, draft_tokens=draft_tokens)
        if speed is not None:
            yield speed
