"""The choice of profile, pair, engine and runtime for a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import groupby, islice

from dflash_deploy.catalog.computed import COUNTS, is_related, name_of, nearest_profile
from dflash_deploy.catalog.hardware import Match, Profile, is_named
from dflash_deploy.catalog.load import GPUS, Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.errors import NotPossible, UnknownProfile
from dflash_deploy.host.gpu import Gpu, driver_advice
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.cache_pool import Sizing
from dflash_deploy.plan.command import refusals_of_env
from dflash_deploy.plan.compatible import capability, obstacles
from dflash_deploy.plan.memory import GIB, LEAST_CONTEXT, fit
from dflash_deploy.plan.result import GOALS, Choice, Goal, RuntimeName
from dflash_deploy.plan.sizes import SINGLE, machine_settings, sized, useful_sizes
from dflash_deploy.plan.speed import predict
from dflash_deploy.serve.settings import Settings


def gpu_fits(match: Match, gpu: Gpu) -> bool:
    """Whether a GPU is of the profile's kind, by what the driver reports. A match without names takes any name."""
    if gpu.mig or (match.names and not is_named(match.names, gpu.name)):
        return False
    if match.memory_gib is not None and gpu.memory is not None:
        least, most = match.memory_gib
        if not least <= gpu.memory / GIB <= most:
            return False
    if gpu.compute_capability and match.compute_capability is not None:
        return gpu.compute_capability == match.compute_capability
    return bool(match.names)


def fitting_gpus(profile: Profile, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs of this machine that the profile uses; empty if there are too few of its kind."""
    matching = tuple(gpu for gpu in facts.gpus if gpu_fits(profile.match, gpu))
    return matching[: profile.match.gpus] if len(matching) >= profile.match.gpus else ()


def used_gpus(profile: Profile, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs of this machine that a plan for the profile would use, in `plan` and in `doctor`.

    Without enough GPUs of its kind, those that run the same kernels, such as the laptop variant of a card: memory is
    theirs. Empty on another kind of machine, whose memory is the profile's.
    """
    alike = [gpu for gpu in facts.gpus if gpu.compute_capability == profile.match.compute_capability and not gpu.mig]
    return fitting_gpus(profile, facts) or tuple(alike[: profile.match.gpus])


def fits(profile: Profile, facts: HostFacts) -> bool:
    """Whether the machine has what the profile needs."""
    if profile.match.gpus == 0:
        return not facts.gpus
    return bool(fitting_gpus(profile, facts))


def choose_profile(facts: HostFacts, catalog: Catalog) -> Profile:
    """The profile that uses most of this machine, computed if none describes its GPUs. Raises UnknownProfile."""
    if facts.gpu_problem and not facts.gpus:
        raise UnknownProfile(
            f"the GPU cannot be read: {facts.gpu_problem}",
            hint=f"{driver_advice(facts.gpu_problem)}; or name the hardware with --profile: "
            f"{', '.join(sorted(catalog.profiles))}",
        )
    described = (one for one in catalog.profiles.values() if one.hardware.machines == 1 and fits(one, facts))
    candidates = [*described, *_computed(facts, catalog)]
    if candidates:
        return max(candidates, key=_size)
    raise _none_fits(facts, catalog)


def _size(profile: Profile) -> tuple[float, float]:
    """The memory of a profile's GPUs together, then their bandwidth: of two cards of 24 GB the faster one is used."""
    hardware, gpus = profile.hardware, profile.match.gpus
    return gpus * hardware.memory_gib, gpus * hardware.bandwidth


def _computed(facts: HostFacts, catalog: Catalog) -> Iterator[Profile]:
    """For each kind of GPU that the catalog has figures of, the profile for as many of them as share a model."""
    for model in catalog.gpu_models if facts.gpus else ():
        seen = sum(is_named(model.names, gpu.name) for gpu in facts.gpus)
        named = (catalog.find_profile(name_of(model, count)) for count in COUNTS if count <= seen)
        yield from islice((one for one in named if one is not None and fits(one, facts)), 1)


def _none_fits(facts: HostFacts, catalog: Catalog) -> UnknownProfile:
    """Why no profile fits, and the nearest one."""
    seen = ", ".join(map(_described, facts.gpus)) or "no GPU"
    largest = max(facts.gpus, key=lambda gpu: gpu.memory or 0, default=Gpu("", "", None, ""))
    near = nearest_profile(catalog.profiles, largest.compute_capability, (largest.memory or 0) / GIB)
    instead = ""
    if any(gpu.mig for gpu in facts.gpus):
        why, instead = "MIG splits a GPU into slices", "switch MIG off (`nvidia-smi -mig 0`), or "
    elif near is None or not is_related(near, largest.compute_capability):
        why = _unsupported(largest, catalog)
    else:
        why, instead = "the catalog has no bandwidth of it", f"add it to {GPUS} of a custom catalog, or "
    nearest = f" (nearest: {near.name}, {near.title})" if near else ""
    hint = f"{instead}name a profile with --profile{nearest}; `dflash-deploy profiles list` prints all"
    return UnknownProfile(f"no profile fits this machine: {seen}; {why}", hint=hint)


def _unsupported(gpu: Gpu, catalog: Catalog) -> str:
    """Why no engine of the catalog runs DFlash on a GPU: draft models are BF16, which old GPUs do not compute."""
    here = gpu.compute_capability or "unknown"
    least = min(
        (one.loads["bf16"] for one in catalog.engines.values() if "bf16" in one.loads and not one.cpu), key=capability
    )
    if capability(here) < capability(least):
        return f"vLLM and SGLang load draft models, which are BF16, from compute capability {least} on"
    return f"no engine is known to run DFlash on compute capability {here}"


def _described(gpu: Gpu) -> str:
    capability = f"compute capability {gpu.compute_capability or 'unknown'}"
    memory = f", {gpu.memory / GIB:.0f} GiB" if gpu.memory else ""
    return f"{gpu.name} ({capability}{memory}{', split by MIG' if gpu.mig else ''})"


def engines_of(profile: Profile, catalog: Catalog, asked: str | None) -> tuple[EngineRelease, ...]:
    """The engine releases to choose from, the preferred one first.

    `asked` is the name of a release or of an engine (`vllm`). Raises UnknownEngine if it is neither.
    """
    releases = tuple(catalog.engines[choice.release] for choice in profile.engines)
    if asked is None:
        return releases
    # first: the fork's release for GPUs has the engine's name
    family = tuple(release for release in releases if release.engine == asked)
    if family:
        return family
    if asked in catalog.engines:
        return (catalog.engines[asked],)
    elsewhere = tuple(release for release in catalog.engines.values() if release.engine == asked)
    return elsewhere or (catalog.engine(asked),)


def engines_here(
    facts: HostFacts, engines: Sequence[EngineRelease], runtime: RuntimeName | None
) -> tuple[EngineRelease, ...]:
    """The releases that this machine can run as it is, with `runtime` if that was asked for.

    With Docker and Compose that is every release, without them an installed engine.
    """
    return tuple(engine for engine in engines if _runs_here(facts, engine, runtime))


def _runs_here(facts: HostFacts, engine: EngineRelease, runtime: RuntimeName | None) -> bool:
    return any(runtime in {None, possible} for possible in possible_runtimes(facts, engine))


def usual_engine_unfit_here(
    profile: Profile,
    facts: HostFacts,
    catalog: Catalog,
    engine: EngineRelease,
    runtime: RuntimeName,
    memory: int,
    choice: Choice,
) -> EngineRelease | None:
    """The engine that the profile would have on any other machine, if this one can run only the chosen one."""
    engines = engines_of(profile, catalog, None)
    if not _runs_here(facts, engine, runtime) or all(_runs_here(facts, one, runtime) for one in engines):
        return None
    usual = choose_engine(profile, choose_pair(profile, catalog, engines, choice, memory), engines)
    return None if usual == engine or _runs_here(facts, usual, runtime) else usual


def choose_engine(
    profile: Profile, pair: ModelPair, engines: Sequence[EngineRelease], *, gpus: int | None = None
) -> EngineRelease:
    """The first engine that serves the pair on this profile, on `gpus` GPUs if they are fewer than the profile's.

    Engines that are not known to have loaded its quantization come last. Raises NotPossible, with all obstacles.
    """
    serving = [engine for engine in engines if not obstacles(profile, pair, engine, gpus=gpus)]
    if serving:
        return _most_proven(profile, pair, serving)
    reasons = dict.fromkeys(reason for engine in engines for reason in obstacles(profile, pair, engine, gpus=gpus))
    raise NotPossible(
        f"{pair.name} cannot be served on {profile.name}: {'; '.join(reasons)}",
        hint="`dflash-deploy models list` shows which models run on which hardware, and why",
    )


def _most_proven(profile: Profile, pair: ModelPair, serving: Sequence[EngineRelease]) -> EngineRelease:
    """The first engine that is known to load the quantization; of these, one whose image does not change."""
    here = profile.hardware.architecture
    return min(serving, key=lambda engine: (pair.target.quantisation in engine.unproven, engine.image_on(here).moves))


NO_ROOM = 2  # what a candidate lacks whose weights and a short context do not fit


@dataclass(frozen=True)
class RankedPair:
    """A pair with the engine that serves it on a profile, and what ranks it."""

    profile: Profile
    pair: ModelPair
    engine: EngineRelease
    choice: Choice
    memory: int
    published: tuple[PublishedSpeed, ...]

    @cached_property
    def sizing(self) -> Sizing:
        """The sizes that a plan of it would have."""
        goal = goal_of(self.choice)
        return sized(self.profile, self.pair, self.engine, self.choice, goal, memory=self.memory).sizing

    @cached_property
    def unsafe(self) -> str:
        """What a user must know before starting it, so that it is not a default; empty if nothing."""
        target, drafter = self.pair.target, self.pair.drafter
        reasons = {
            "no safety alignment": not target.aligned,
            "its licence has conditions": not (target.usable and drafter.usable),
            "the tag of its image moves": self.engine.image_on(self.profile.hardware.architecture).moves,
            "its engine changes answers": any(bug.changes_answers for bug in self.engine.open_bugs),
            "not known to load": self.pair.target.quantisation in self.engine.unproven,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    @cached_property
    def lack(self) -> float:
        """What part of a useful context and of useful sequences is missing: 0 to 1; 2 if it does not fit at all."""
        length, sequences = useful_sizes(self.profile)
        least = 1 if (length, sequences) == SINGLE else sequences
        if not fit(self.pair, self.sizing).fits or self.sizing.max_model_len < LEAST_CONTEXT:
            return NO_ROOM
        if not self.pair.sees and not self.pair.toy:
            return 1
        have = min(self.sizing.max_model_len / length, 1) * min(self.sizing.max_num_seqs / least, 1)
        return round(1 - have, 1)

    @cached_property
    def _chosen(self) -> Settings:
        return machine_settings(self.profile, self.engine)

    @property
    def concurrency(self) -> int:
        """The requests at the same time that its speed is compared with."""
        usual = useful_sizes(self.profile)[1]
        return self.choice.concurrency or min(usual, self._chosen.max_num_seqs or usual)

    @cached_property
    def speed(self) -> float:
        """Tokens/s at the chosen concurrency: the highest published here, else the middle of what is expected."""
        here = [row.dflash for row in self.published if row.concurrency == self.concurrency]
        return max(here) if here else self._expected(drafts=True)

    @cached_property
    def pays(self) -> bool:
        """Whether the speed model expects a gain from drafts."""
        return self._expected(drafts=True) > self._expected(drafts=False)

    def _expected(self, *, drafts: bool) -> float:
        chosen, most = self._chosen.dflash_num_spec_tokens, self.pair.drafter.most_draft_tokens
        tokens = min(chosen or most, most) if drafts and self.choice.drafter and not self.pair.drafter.absent else 0
        speed = predict(self.profile, self.pair, concurrency=self.concurrency, draft_tokens=tokens, engine=self.engine)
        return speed.expected("dflash") if speed else 0.0


Criterion = Callable[[RankedPair], float]


def _lack(one: RankedPair) -> float:
    return one.lack


# What ranks candidates, each smaller for the better one, and the words for it.
CRITERIA: Mapping[str, Criterion] = {
    "safe": lambda one: bool(one.unsafe),
    "useful": _lack,
    "newest": lambda one: -(one.pair.family.released or date.min).toordinal(),
    "shared": lambda one: -one.concurrency,
    "measured": lambda one: not one.published,
    "exact": lambda one: not one.pair.exact,
    "engine": lambda one: [choice.release for choice in one.profile.engines].index(one.engine.name),
    "drafts": lambda one: not one.pays,
    "speed": lambda one: -one.speed,
    "context": lambda one: -one.sizing.max_model_len,
    "tools": lambda one: one.pair.family.tool_call_parser is None,
    "images": lambda one: not one.pair.sees,
}

# The order without a goal, and what each goal changes in it.
USUAL = ("safe", "useful", "newest", "shared", "measured", "exact", "engine", "drafts", "speed")
ORDERS: Mapping[Goal | None, tuple[str, ...]] = {
    None: USUAL,
    "latency": ("safe", "useful", "measured", "drafts", "speed", "newest"),
    "throughput": ("safe", "useful", "speed", "newest"),
    "context": ("safe", "images", "context", "newest", "measured", "exact", "drafts", "speed"),
    "coding": ("safe", "tools", *USUAL[1:]),
    "vision": ("safe", "images", *USUAL[1:]),
}


def ranked(
    profile: Profile, catalog: Catalog, engines: Sequence[EngineRelease], choice: Choice, memory: int
) -> Iterator[RankedPair]:
    """The pairs that one of the engines serves on this profile, the best first; `memory` is that of one GPU in bytes.

    Toys are for processors.
    """
    toys = profile.match.gpus == 0
    found = []
    for pair in catalog.pairs.values():
        if serving := [engine for engine in engines if not obstacles(profile, pair, engine)]:
            engine = _most_proven(profile, pair, serving)
            published = published_with(profile, pair, engine, catalog)
            found.append(RankedPair(profile, pair, engine, choice, memory, published))
    for group in (toys, not toys):
        yield from _in_order([one for one in found if one.pair.toy is group], ORDERS[goal_of(choice)])


def _in_order(found: Sequence[RankedPair], names: Sequence[str]) -> Iterator[RankedPair]:
    """Candidates by the first criterion, those that are alike in it by the next, and so on."""
    if len(found) < 2 or not names:
        yield from found
        return
    by, rest = CRITERIA[names[0]], names[1:]
    if by is _lack:
        # sizes take long to decide: only those of candidates that are asked for, and lead in all else
        lacking = []
        for one in _in_order(found, rest):
            if one.lack:
                lacking.append(one)
            else:
                yield one
        yield from sorted(lacking, key=by)
        return
    for _, alike in groupby(sorted(found, key=by), key=by):
        yield from _in_order(list(alike), rest)


def best(profile: Profile, catalog: Catalog, choice: Choice | None = None) -> Iterator[RankedPair]:
    """The pairs for a profile's own hardware, the best first: the first one is what a plan takes."""
    memory = int(profile.hardware.memory_gib * GIB)
    yield from ranked(profile, catalog, engines_of(profile, catalog, None), choice or Choice(), memory)


def decided_by(first: RankedPair, other: RankedPair) -> str:
    """The name of the criterion by which a candidate comes before another one; empty if they are alike."""
    return next((name for name in ORDERS[goal_of(first.choice)] if CRITERIA[name](first) < CRITERIA[name](other)), "")


def published_with(
    profile: Profile, pair: ModelPair, engine: EngineRelease, catalog: Catalog
) -> tuple[PublishedSpeed, ...]:
    """What others measured on this hardware with the engine, with these models or with others of the same form."""

    def form(one: ModelPair) -> tuple[object, ...]:
        return one.family.name, one.target.quantisation, one.drafter.quantised

    return tuple(
        row
        for row in catalog.speeds
        if (row.profile, row.engine) == (profile.name, engine.engine) and form(catalog.pairs[row.pair]) == form(pair)
    )


def choose_pair(
    profile: Profile, catalog: Catalog, engines: Sequence[EngineRelease], choice: Choice, memory: int
) -> ModelPair:
    """The best pair that one of the engines serves on this profile. If none fits, the rules say what is missing.

    Raises NotPossible if no engine serves any.
    """
    best = next(ranked(profile, catalog, engines, choice, memory), None)
    if best is not None:
        return best.pair
    names = ", ".join(engine.title for engine in engines)
    raise NotPossible(
        f"{names} serves no model of the catalog on {profile.name}",
        hint=f"remove --engine; {profile.name} has {', '.join(choice.release for choice in profile.engines)}",
    )


def goal_of(choice: Choice) -> Goal | None:
    """The goal of the option, else of `.env`."""
    with refusals_of_env():
        written = Settings.dflash_goal.read(choice.edited)
    return choice.goal or next((goal for goal in GOALS if goal == written), None)


def choose_runtime(facts: HostFacts, engine: EngineRelease) -> RuntimeName:
    """The first possible runtime.

    With none, Compose: the files can be made here and used elsewhere, and `up` says what is missing.
    """
    return next(possible_runtimes(facts, engine), "native" if is_light_here(facts, engine) else "compose")


def is_light_here(facts: HostFacts, engine: EngineRelease) -> bool:
    """Whether a machine has neither GPU nor Docker, and the engine is small: llama.cpp has 226 MB, vLLM 4.5 GB."""
    return not facts.gpus and not has_compose(facts) and engine.cpu and engine.light


def has_compose(facts: HostFacts) -> bool:
    """Whether Docker with Compose responds."""
    return facts.container_engine is not None and bool(facts.container_engine.compose)


def possible_runtimes(facts: HostFacts, engine: EngineRelease) -> Iterator[RuntimeName]:
    """Compose if Docker with Compose responds; native if an engine of the planned kind is installed."""
    if has_compose(facts):
        yield "compose"
    installed = facts.native_engines.get(engine.engine)
    if installed is not None and engine.native is not None and installed.cpu == engine.cpu:
        yield "native"
