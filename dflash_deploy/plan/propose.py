"""What a plan proposes, setting by setting, each with where it comes from and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_deploy.assets import asset, build_digest
from dflash_deploy.catalog import EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.models import Weights
from dflash_deploy.catalog.schema import CatalogSetting
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.base_image import base_image_for
from dflash_deploy.plan.choose import fitting_gpus
from dflash_deploy.plan.command import in_home, refusals_of_env
from dflash_deploy.plan.result import Decision, decided
from dflash_deploy.plan.sizes import Sizer, machine_settings, sizing_of
from dflash_deploy.plan.wishes import GOALS, Choice, Goal, RuntimeName
from dflash_deploy.serve.settings import Settings

OF_THE_DRAFTER = frozenset(
    field.name
    for field in (
        Settings.dflash_num_spec_tokens,
        Settings.dflash_spec_schedule,
        Settings.dflash_attention_backend,
        Settings.dflash_kv_cache_dtype,
    )
)
"""Settings that have no effect without a drafter."""


def propose(
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    runtime: RuntimeName,
    facts: HostFacts,
    choice: Choice,
    memory: int,
) -> dict[str, Decision]:
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
) -> Iterator[Decision]:
    yield decided(Settings.dflash_profile, profile.name, "--profile" if choice.profile else "hardware", profile.title)
    own = f"profile {profile.name}"
    serves = own if pair.name == profile.pair else "catalog"
    yield decided(Settings.dflash_pair, pair.name, "--model" if choice.model else serves, pair.title)
    yield decided(Settings.dflash_engine, engine.name, "--engine" if choice.engine else own, engine.title)
    asked = "--runtime" if choice.runtime else "machine"
    yield decided(Settings.dflash_runtime, runtime, asked, "how the engine is run on this machine")
    goal = _goal(choice)
    if goal:
        yield decided(Settings.dflash_goal, goal, "--goal", "what the sizes were chosen for")


def _endpoint(choice: Choice) -> Iterator[Decision]:
    host, port = choice.host or Settings.dflash_bind.default, choice.port or Settings.dflash_port.default
    yield decided(
        Settings.dflash_bind, host, "--host" if choice.host else "default", "this machine alone unless asked otherwise"
    )
    yield decided(Settings.dflash_port, port, "--port" if choice.port else "default", "where clients find the endpoint")


def _weights(pair: ModelPair, choice: Choice) -> Iterator[Decision]:
    origin, models_dir = f"pair {pair.name}", choice.models_dir
    yield decided(
        Settings.model_host_path, directory_of(pair.target, models_dir), origin, "where the target's weights lie"
    )
    if pair.target.file:
        yield decided(Settings.model_file, pair.target.file, origin, "the one file of the repository that is used")
    if pair.target.projector:
        yield decided(Settings.mmproj_file, pair.target.projector, origin, "the vision tower, beside the target")
    if not choice.drafter:
        yield decided(Settings.dflash_drafter, "off", "--no-drafter", "plain decoding, to compare with")
        return
    drafter = directory_of(pair.drafter, models_dir)
    yield decided(
        Settings.dflash_drafter, pair.drafter.repo or drafter, origin, "the drafter that belongs to this target"
    )
    yield decided(Settings.drafter_host_path, drafter, origin, "where the drafter's weights lie")
    if pair.drafter.file:
        yield decided(Settings.drafter_file, pair.drafter.file, origin, "the one file of the repository that is used")


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


def _image(profile: Profile, engine: EngineRelease, facts: HostFacts) -> Iterator[Decision]:
    origin = f"engine {engine.name}"
    architecture = profile.hardware.architecture or facts.architecture
    base = base_image_for(engine, architecture, (gpu.driver for gpu in fitting_gpus(profile, facts)))
    image = f"{engine.image}-{build_digest(engine.engine)}"
    built = f"built here from images/{engine.engine}, which the last digits stand for, if absent"
    yield decided(Settings.dflash_image, image, origin, built)
    takes = {"shell": "is a shell", "modes": "takes a mode word"}.get(engine.entry_point, f"takes {engine.entry_point}")
    older = ", with an earlier CUDA for this machine's driver" if base.older else ""
    reason = f"what that image is built on{older}; its own entry point {takes}, and ours goes in front"
    yield decided(Settings.dflash_base_image, base.tag, origin, reason, base.source)


def _of_the_model(pair: ModelPair, engine: EngineRelease, choice: Choice) -> Iterator[Decision]:
    """Names, draft tokens, parsers and thinking, as the model's family has them."""
    origin, family = f"pair {pair.name}", pair.family
    yield decided(
        Settings.served_model_name, (pair.target.served_name,), origin, "the name under which clients ask for it"
    )
    if choice.drafter:
        reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
        yield decided(Settings.dflash_num_spec_tokens, pair.drafter.most_draft_tokens, origin, reason)
    if engine.kind.knows(Settings.reasoning_parser):
        if family.reasoning_parser:
            why = "separates thinking from the answer; without it the tags stand in the answer"
            yield decided(Settings.reasoning_parser, engine.parser(family.reasoning_parser), origin, why)
        if family.tool_call_parser:
            parser = engine.parser(family.tool_call_parser)
            yield decided(Settings.tool_call_parser, parser, origin, "reads the model's form of tool calls")
    if family.thinking == "on" and family.drafter_thinking is False and choice.drafter:
        why = "the drafter was trained without thinking, and is rejected where the target thinks"
        yield decided(Settings.enable_thinking, False, origin, why)
    yield from _chosen({**family.settings, **pair.target.settings}, origin)


def _of_the_machine(
    profile: Profile, pair: ModelPair, engine: EngineRelease, facts: HostFacts, choice: Choice
) -> Iterator[Decision]:
    for source, settings in _machine_settings(profile, engine):
        known = setting_names(engine.engine)
        for setting in _chosen(settings, source):
            if setting.name == Settings.limit_images_per_prompt.name and not pair.sees:
                continue
            if setting.name in OF_THE_DRAFTER and not choice.drafter:
                continue
            if setting.name in known or setting.name.startswith(("NCCL_", "GLOO_")):
                yield setting
    if profile.match.gpus and profile.hardware.machines == 1:
        yield from _subset(profile, facts)
    if profile.hardware.machines > 1:
        rank, master = choice.node_rank or 0, choice.master_addr
        yield decided(
            Settings.node_rank, rank, "--node-rank" if rank else "default", "0 answers requests, others compute"
        )
        if master:
            yield decided(Settings.master_addr, master, "--master-addr", "where the machines find rank 0")


def _machine_settings(profile: Profile, engine: EngineRelease) -> Iterator[tuple[str, Mapping[str, CatalogSetting]]]:
    yield f"profile {profile.name}", profile.settings
    for chosen in profile.engines:
        if chosen.release == engine.name:
            yield f"profile {profile.name} for {engine.name}", chosen.settings


def _subset(profile: Profile, facts: HostFacts) -> Iterator[Decision]:
    """Which GPUs, where the machine has others too."""
    used = fitting_gpus(profile, facts)
    if used and len(used) < len(facts.gpus):
        numbers = ",".join(str(gpu.index) for gpu in used)
        yield Decision("CUDA_VISIBLE_DEVICES", numbers, "hardware", f"the {used[0].name} among this machine's GPUs")
        yield Decision("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "hardware", "the numbers that nvidia-smi counts by")


def _sized(profile: Profile, pair: ModelPair, engine: EngineRelease, memory: int, choice: Choice) -> Iterator[Decision]:
    """Draft tokens and sizes that differ from the profile's, by wish or by memory."""
    chosen = machine_settings(profile, engine)
    most, wanted = pair.drafter.most_draft_tokens, chosen.dflash_num_spec_tokens
    if wanted is not None and wanted > most and choice.drafter:
        reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
        yield decided(Settings.dflash_num_spec_tokens, most, f"pair {pair.name}", reason)
    draft_tokens = min(wanted or most, most) if choice.drafter else 0
    sizing = sizing_of(chosen, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)
    yield from Sizer(profile, pair, engine, sizing, stated=wanted is not None).decide(choice, _goal(choice))


def _goal(choice: Choice) -> Goal | None:
    """The goal that was asked for. One in `.env` has been answered: the sizes stand beside it."""
    with refusals_of_env():
        written = Settings.dflash_goal.read(choice.edited)
    return choice.goal or next((goal for goal in GOALS if goal == written), None)


def _chosen(choices: Mapping[str, CatalogSetting], origin: str) -> Iterator[Decision]:
    for name, chosen in choices.items():
        yield Decision(name, str(chosen.value), origin, chosen.reason, chosen.source)
