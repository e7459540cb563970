"""What a plan proposes, setting by setting, each with its origin and reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.assets import asset, build_digest
from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.models import ModelPair, Weights
from dflash_deploy.catalog.read import CatalogSetting
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.host.gpu import IN_ORDER, VISIBLE
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.base_image import base_image_for
from dflash_deploy.plan.choose import fitting_gpus, goal_of, has_compose
from dflash_deploy.plan.command import in_home
from dflash_deploy.plan.compatible import backend_on, planned_backend, refused_traits
from dflash_deploy.plan.copies import copies_of, decisions_of
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Choice, Decision, RuntimeName, decided
from dflash_deploy.plan.sizes import machine_settings, sized
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP

MIB = 2**20

MOST_PROMPT_CACHE = 8192  # miB of llama.cpp's own default

# The part of the machine's memory that is for prompts of earlier requests, and the size that it is a multiple of.
PROMPT_CACHE_SHARE, PROMPT_CACHE_STEP = 16, 256 * MIB

# Settings that have no effect without a drafter.
OF_THE_DRAFTER = frozenset(
    field.name
    for field in (
        Settings.dflash_num_spec_tokens,
        Settings.dflash_spec_schedule,
        Settings.dflash_attention_backend,
        Settings.dflash_kv_cache_dtype,
    )
)


@dataclass(frozen=True)
class Basis:
    """What settings are proposed for: the choices so far, this machine, and what the user asked for.

    `memory` is that of one GPU in bytes. `preferred` is the engine that the profile prefers, if this machine can run
    only the chosen one. `profile` has the settings of the `recipe`, if one was asked for. `published` are the speeds
    that others measured with these models and this engine on this hardware.
    """

    profile: Profile
    pair: ModelPair
    engine: EngineRelease
    runtime: RuntimeName
    facts: HostFacts
    choice: Choice
    memory: int
    preferred: EngineRelease | None = None
    recipe: Recipe | None = None
    published: tuple[PublishedSpeed, ...] = ()


def propose(basis: Basis) -> dict[str, Decision]:
    """The proposed settings by name; the last decision about a setting overrides earlier ones."""
    return {
        setting.name: setting
        for setting in (
            *_identity(basis),
            *_endpoint(basis.choice),
            *_weights(basis.pair, basis.choice),
            *_image(basis),
            *_of_the_model(basis),
            *_of_the_machine(basis),
            *_copied(basis),
            *_sized(basis),
            *_prompt_cache(basis),
        )
    }


def _identity(basis: Basis) -> Iterator[Decision]:
    profile, pair, choice = basis.profile, basis.pair, basis.choice
    yield decided(Settings.dflash_profile, profile.name, "--profile" if choice.profile else "hardware", profile.title)
    ranked = "its headers" if pair.family.unknown else "first of those that fit"
    serves = _recipe_origin(basis) or ("--model" if choice.model else ranked)
    yield decided(Settings.dflash_pair, pair.name, serves, pair.title)
    yield _engine(basis)
    asked = "--runtime" if choice.runtime else "machine"
    left = basis.runtime == "native" and not choice.runtime and not has_compose(basis.facts)
    here = "is installed" if basis.engine.engine in basis.facts.native_engines else "is the smallest to install"
    how = f"the engine {here}, and Docker with Compose is missing" if left else "how this machine runs the engine"
    yield decided(Settings.dflash_runtime, basis.runtime, asked, how)
    goal = goal_of(choice)
    if goal:
        yield decided(Settings.dflash_goal, goal, "--goal", "the goal that the sizes are chosen for")


def _recipe_origin(basis: Basis) -> str:
    """The origin of what the recipe decides; empty without one."""
    return f"recipe {basis.recipe.name}" if basis.recipe else ""


def _engine(basis: Basis) -> Decision:
    engine, preferred = basis.engine, basis.preferred
    if basis.choice.engine:
        return decided(Settings.dflash_engine, engine.name, _recipe_origin(basis) or "--engine", engine.title)
    if preferred is not None:
        no_docker = "" if has_compose(basis.facts) else ", and Docker with Compose is missing"
        why = f"{engine.title} is installed here; {preferred.title} is not{no_docker}"
        return decided(Settings.dflash_engine, engine.name, "machine", why)
    return decided(Settings.dflash_engine, engine.name, f"profile {basis.profile.name}", engine.title)


def _endpoint(choice: Choice) -> Iterator[Decision]:
    bind, port = Settings.dflash_bind, Settings.dflash_port
    reason = "only this machine can connect unless --host says otherwise"
    yield decided(bind, choice.host or bind.default, "--host" if choice.host else "default", reason)
    yield decided(port, choice.port or port.default, "--port" if choice.port else "default", "the endpoint's port")
    if choice.domain:
        reason = "Caddy publishes the endpoint there with HTTPS"
        yield decided(Settings.dflash_domain, choice.domain, "--domain", reason)


def _weights(pair: ModelPair, choice: Choice) -> Iterator[Decision]:
    origin, models_dir = f"pair {pair.name}", choice.models_dir
    one_file = "the file of the repository that is used"
    target = directory_of(pair.target, models_dir)
    yield decided(Settings.model_host_path, target, origin, "the directory of the target's weights")
    if pair.target.file:
        yield decided(Settings.model_file, pair.target.file, origin, one_file)
    if pair.target.projector:
        yield decided(Settings.mmproj_file, pair.target.projector, origin, "the vision projector beside the target")
    if choice.mtp:
        yield decided(Settings.dflash_drafter, MTP, "--drafter", "the MTP head that comes with the target's weights")
        return
    if pair.drafter.absent:
        yield decided(Settings.dflash_drafter, "off", origin, "this target has no draft model")
        return
    if not choice.drafter:
        reason = "without speculative decoding, for comparison"
        yield decided(Settings.dflash_drafter, "off", "--no-drafter", reason)
        return
    drafter = directory_of(pair.drafter, models_dir)
    reason = "the drafter that belongs to this target"
    yield decided(Settings.dflash_drafter, pair.drafter.repo or drafter, origin, reason)
    yield decided(Settings.drafter_host_path, drafter, origin, "the directory of the drafter's weights")
    if pair.drafter.file:
        yield decided(Settings.drafter_file, pair.drafter.file, origin, one_file)


def directory_of(weights: Weights, models_dir: Path) -> str:
    """The directory of a model: one of the package's assets, or one below `models_dir`."""
    if weights.bundled is not None:
        return str(asset(weights.bundled))
    if weights.path is not None:
        return weights.path
    assert weights.repo is not None  # noqa: S101 - the catalog's schema test holds it
    # two revisions of one repository can be on disk at the same time
    suffix = f"-{weights.revision[:8]}" if weights.revision else ""
    return directory_below(models_dir, weights.repo) + suffix


def directory_below(models_dir: Path, repo: str) -> str:
    """The directory of a repository's weights: its name, without the owner."""
    return str(in_home(models_dir).absolute() / repo.rsplit("/", 1)[-1])


def _image(basis: Basis) -> Iterator[Decision]:
    engine = basis.engine
    origin = f"engine {engine.name}"
    architecture = basis.profile.hardware.architecture or basis.facts.architecture
    drivers = (gpu.driver for gpu in fitting_gpus(basis.profile, basis.facts))
    base = base_image_for(engine, architecture, drivers)
    image = f"{engine.image}-{build_digest(engine.engine)}"
    built = f"built here from images/{engine.engine} if it is missing; the last digits identify those files"
    yield decided(Settings.dflash_image, image, origin, built)
    takes = {"shell": "is a shell", "modes": "takes a mode word"}.get(engine.entry_point, f"takes {engine.entry_point}")
    older = ", with an earlier CUDA for this machine's driver" if base.older else ""
    reason = f"the base of that image{older}; its own entry point {takes}, and ours precedes it"
    yield decided(Settings.dflash_base_image, base.tag, origin, reason, base.source)


def _of_the_model(basis: Basis) -> Iterator[Decision]:
    """Names, draft tokens, parsers and thinking, as the model's family has them."""
    pair, engine, drafter = basis.pair, basis.engine, basis.choice.drafter
    origin, family = f"pair {pair.name}", pair.family
    yield decided(Settings.served_model_name, (pair.target.served_name,), origin, "the model name in requests")
    if drafter:
        yield _whole_block(pair)
        yield from _drafter_format(pair, engine)
    if engine.kind.knows(Settings.reasoning_parser):
        if parser := engine.parser(Settings.reasoning_parser.name, family.reasoning_parser):
            why = "separates thinking from the answer; without it the tags appear in the answer"
            yield decided(Settings.reasoning_parser, parser, origin, why)
        if parser := engine.parser(Settings.tool_call_parser.name, family.tool_call_parser):
            yield decided(Settings.tool_call_parser, parser, origin, "reads the model's format of tool calls")
    if family.thinking == "on" and family.drafter_thinking is False and drafter:
        why = "the drafter was trained without thinking, and its drafts are rejected if the target thinks"
        yield decided(Settings.enable_thinking, False, origin, why)
    yield from _chosen({**family.settings, **pair.target.settings}, origin)


def _drafter_format(pair: ModelPair, engine: EngineRelease) -> Iterator[Decision]:
    """The arguments without which the engine reads the drafter's weights as if they were not quantized."""
    arguments = engine.kind.drafter_formats.get(pair.drafter.quantisation or "")
    if arguments:
        why = "names the quantization of the drafter's weights; without it the engine reads them wrongly"
        yield decided(Settings.extra_args, arguments, f"pair {pair.name}", why, pair.drafter.source)


def _whole_block(pair: ModelPair) -> Decision:
    reason = f"one fewer than the block of {pair.drafter.block_size} that the drafter was trained on"
    return decided(Settings.dflash_num_spec_tokens, pair.drafter.most_draft_tokens, f"pair {pair.name}", reason)


def _of_the_machine(basis: Basis) -> Iterator[Decision]:
    profile, choice = basis.profile, basis.choice
    recipe = [(_recipe_origin(basis), basis.recipe.settings)] if basis.recipe else []
    engine = basis.engine.name
    chosen = [
        (f"profile {profile.name} for {engine}", one.settings) for one in profile.engines if one.release == engine
    ]
    for origin, settings in ((f"profile {profile.name}", profile.settings), *chosen, *recipe):
        for setting in _chosen(settings, origin):
            if _applies(setting.name, basis):
                yield setting
    yield from _another_backend(basis)
    if profile.match.gpus and profile.hardware.machines == 1:
        yield from _subset(profile, basis.facts)
    if profile.hardware.machines > 1:
        rank, master = choice.node_rank or 0, choice.master_addr
        origin = "--node-rank" if rank else "default"
        yield decided(Settings.node_rank, rank, origin, "rank 0 answers requests, the others compute")
        if master:
            yield decided(Settings.master_addr, master, "--master-addr", "the address of rank 0")


def _prompt_cache(basis: Basis) -> Iterator[Decision]:
    """The memory of the machine, which may be the GPU's too, that llama.cpp fills with the prompts it has read."""
    field, total = Settings.prompt_cache_mib, basis.facts.memory_total
    if not total or not basis.engine.kind.knows(field):
        return
    steps = total // PROMPT_CACHE_SHARE // PROMPT_CACHE_STEP
    size = min(max(steps, 1) * PROMPT_CACHE_STEP // MIB, MOST_PROMPT_CACHE)
    why = f"prompts of earlier requests, which need not be read again: a part of the {total / GIB:.0f} GiB here"
    yield decided(field, size, "machine", why, "llama.cpp fills 8 GiB by default (ggml-org/llama.cpp#16391)")


def _copied(basis: Basis) -> Iterator[Decision]:
    """The data-parallel copies of the engine."""
    profile, pair, engine, facts, choice = basis.profile, basis.pair, basis.engine, basis.facts, basis.choice
    copies = copies_of(profile, pair, engine, facts, choice, memory=basis.memory, goal=goal_of(choice))
    if copies is not None:
        yield from decisions_of(copies, profile, facts)


def _another_backend(basis: Basis) -> Iterator[Decision]:
    """The first backend of the release that computes the target's attention, if the profile's own does not."""
    profile, pair, engine = basis.profile, basis.pair, basis.engine
    chosen = machine_settings(profile, engine).attention_backend
    own = backend_on(profile, engine, chosen) if chosen else None
    if own is None or not (refused := refused_traits(own, pair)):
        return
    other = planned_backend(profile, pair, engine)
    if other is not None and other is not own:
        why = f"{own.name} refuses the attention of {pair.family.title} on this GPU ({', '.join(refused)})"
        yield decided(Settings.attention_backend, other.name, f"engine {engine.name}", why, own.source)


def _applies(name: str, basis: Basis) -> bool:
    """Whether a setting of the profile has an effect with this engine, target and drafter."""
    if name == Settings.limit_images_per_prompt.name and not basis.pair.sees:
        return False
    if name in OF_THE_DRAFTER and not basis.choice.drafter:
        return False
    return name in setting_names(basis.engine.engine) or name.startswith(("NCCL_", "GLOO_"))


def _subset(profile: Profile, facts: HostFacts) -> Iterator[Decision]:
    """Which GPUs the engine uses, if the machine has others too."""
    used = fitting_gpus(profile, facts)
    if used and len(used) < len(facts.gpus):
        numbers = ",".join(str(gpu.index) for gpu in used)
        every = ", ".join(f"GPU {gpu.index} is {gpu.name}" for gpu in facts.gpus)
        yield Decision(VISIBLE, numbers, "hardware", f"those that the profile is for; {every}")
        yield Decision(IN_ORDER, "PCI_BUS_ID", "hardware", "the order of nvidia-smi's numbers")


def _sized(basis: Basis) -> Iterator[Decision]:
    """Draft tokens and sizes that differ from the profile's, because of options, published figures or memory."""
    profile, pair, engine, choice = basis.profile, basis.pair, basis.engine, basis.choice
    decisions = (*_prompt_cache(basis), *_copied(basis))
    field, published = Settings.dflash_num_spec_tokens, None
    asked = basis.recipe.settings.get(field.name) if basis.recipe is not None else None
    # it was measured so, even if that is more than a block
    tokens = int(asked.value) if asked is not None else None
    if tokens is None and basis.published and choice.drafter:
        published = min(basis.published, key=lambda row: (row.concurrency, -row.dflash))
        tokens = min(published.draft_tokens, pair.drafter.most_draft_tokens)
        reason = f"{published.dflash:g} tokens/s ({published.workload}, concurrency {published.concurrency})"
        yield decided(field, tokens, "published", reason, published.source)
    elif tokens is None and choice.drafter:
        wanted = machine_settings(profile, engine).dflash_num_spec_tokens
        if wanted is not None and wanted > pair.drafter.most_draft_tokens:
            yield _whole_block(pair)
    yield from sized(
        profile, pair, engine, choice, goal_of(choice), memory=basis.memory, decisions=decisions, draft_tokens=tokens
    ).decisions


def _chosen(choices: Mapping[str, CatalogSetting], origin: str) -> Iterator[Decision]:
    for name, chosen in choices.items():
        yield Decision(name, str(chosen.value), origin, chosen.reason, chosen.source)
