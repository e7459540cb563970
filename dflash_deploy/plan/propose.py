"""What a plan proposes, setting by setting, each with where it comes from and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_deploy.assets import asset, build_digest
from dflash_deploy.catalog import EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.models import Weights
from dflash_deploy.catalog.schema import Choice as CatalogChoice
from dflash_deploy.catalog.settings import setting_names, template_of
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.base_image import base_image_for
from dflash_deploy.plan.choose import fitting_gpus
from dflash_deploy.plan.command import in_home
from dflash_deploy.plan.result import Setting
from dflash_deploy.plan.sizes import Sizer, machine_values, sizing_of
from dflash_deploy.plan.wishes import GOALS, Choice, Goal, RuntimeName

OF_THE_DRAFTER = frozenset(
    {"DFLASH_NUM_SPEC_TOKENS", "DFLASH_SPEC_SCHEDULE", "DFLASH_ATTENTION_BACKEND", "DFLASH_KV_CACHE_DTYPE"}
)
"""Settings that say nothing without one."""


def propose(
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    runtime: RuntimeName,
    facts: HostFacts,
    choice: Choice,
    memory: int,
) -> dict[str, Setting]:
    """The proposed settings by name; of several for one name the last counts. `memory` is that of one GPU in bytes."""
    return {
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


def _identity(
    profile: Profile, pair: ModelPair, engine: EngineRelease, runtime: RuntimeName, choice: Choice
) -> Iterator[Setting]:
    yield Setting("DFLASH_PROFILE", profile.name, "--profile" if choice.profile else "hardware", profile.title)
    own = f"profile {profile.name}"
    serves = own if pair.name == profile.pair else "catalog"
    yield Setting("DFLASH_PAIR", pair.name, "--model" if choice.model else serves, pair.title)
    yield Setting("DFLASH_ENGINE", engine.name, "--engine" if choice.engine else own, engine.title)
    asked = "--runtime" if choice.runtime else "machine"
    yield Setting("DFLASH_RUNTIME", runtime, asked, "how the engine is run on this machine")
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
    yield Setting("MODEL_HOST_PATH", directory_of(pair.target, models_dir), origin, "where the target's weights lie")
    if pair.target.file:
        yield Setting("MODEL_FILE", pair.target.file, origin, "the one file of the repository that is used")
    if pair.target.projector:
        yield Setting("MMPROJ_FILE", pair.target.projector, origin, "the vision tower, beside the target")
    if not choice.drafter:
        yield Setting("DFLASH_DRAFTER", "off", "--no-drafter", "plain decoding, to compare with")
        return
    drafter = directory_of(pair.drafter, models_dir)
    yield Setting("DFLASH_DRAFTER", pair.drafter.repo or drafter, origin, "the drafter that belongs to this target")
    yield Setting("DRAFTER_HOST_PATH", drafter, origin, "where the drafter's weights lie")
    if pair.drafter.file:
        yield Setting("DRAFTER_FILE", pair.drafter.file, origin, "the one file of the repository that is used")


def directory_of(weights: Weights, models_dir: Path) -> str:
    """Where a model lies: among the package's assets, or in a directory of its own below `models_dir`."""
    if weights.bundled is not None:
        return str(asset(weights.bundled))
    assert weights.repo is not None  # noqa: S101 - the catalog's schema test holds it
    # two revisions of one repository may both be wanted
    suffix = f"-{weights.revision[:8]}" if weights.revision else ""
    return directory_below(models_dir, weights.repo) + suffix


def directory_below(models_dir: Path, repo: str) -> str:
    """Where the weights of a repository lie: a directory of its name, without the owner."""
    return str(in_home(models_dir).absolute() / repo.rsplit("/", 1)[-1])


def _image(profile: Profile, engine: EngineRelease, facts: HostFacts) -> Iterator[Setting]:
    origin = f"engine {engine.name}"
    architecture = profile.hardware.architecture or facts.architecture
    base = base_image_for(engine, architecture, (gpu.driver for gpu in fitting_gpus(profile, facts)))
    image = f"{engine.image}-{build_digest(engine.engine)}"
    built = f"built here from images/{engine.engine}, which the last digits stand for, if absent"
    yield Setting("DFLASH_IMAGE", image, origin, built)
    takes = {"shell": "is a shell", "modes": "takes a mode word"}.get(engine.entry_point, f"takes {engine.entry_point}")
    older = ", with an earlier CUDA for this machine's driver" if base.older else ""
    reason = f"what that image is built on{older}; its own entry point {takes}, and ours goes in front"
    yield Setting("DFLASH_BASE_IMAGE", base.tag, origin, reason, base.source)


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
            if setting.name in OF_THE_DRAFTER and not choice.drafter:
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
    chosen = machine_values(profile, engine)
    most = pair.drafter.block_size - 1
    wanted = int(chosen.get("DFLASH_NUM_SPEC_TOKENS") or most)
    if wanted > most and choice.drafter:
        reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
        yield Setting("DFLASH_NUM_SPEC_TOKENS", str(most), f"pair {pair.name}", reason)
    draft_tokens = min(wanted, most) if choice.drafter else 0
    sizing = sizing_of(chosen, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)
    stated = "DFLASH_NUM_SPEC_TOKENS" in chosen
    yield from Sizer(profile, pair, engine, sizing, stated=stated).decide(choice, _goal(choice))


def _goal(choice: Choice) -> Goal | None:
    """The goal that was asked for. One in `.env` has been answered: the sizes stand beside it."""
    written = choice.edited.get("DFLASH_GOAL")
    if written and written not in GOALS:
        raise SettingsRefused(f"DFLASH_GOAL={written} is no goal", hint=f"there are {', '.join(GOALS)}")
    return choice.goal or next((goal for goal in GOALS if goal == written), None)


def _chosen(choices: Mapping[str, CatalogChoice], origin: str) -> Iterator[Setting]:
    for name, chosen in choices.items():
        yield Setting(name, str(chosen.value), origin, chosen.reason, chosen.source)
