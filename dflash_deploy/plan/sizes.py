"""Context, sequences, draft tokens and tokens of a step: the profile's sizes, adapted to options and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.plan.cache_pool import Sizing
from dflash_deploy.plan.command import refusals_of_env
from dflash_deploy.plan.compatible import KV_OF_16_BITS, backend_on, readers_of
from dflash_deploy.plan.memory import GIB, LEAST_CONTEXT, SHORT_CONTEXT, fit, reserve, unified_share
from dflash_deploy.plan.result import Choice, Decision, Goal, decided
from dflash_deploy.plan.speed import best_draft_tokens
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import PROMPT_TOKENS, positions

# Tokens of context for coding agents.
#
# Measured against this project's endpoint, 2026-11: the first request of Codex 0.169 has 9,347 tokens, of Qwen Code
# 0.15 19,474, and Claude Code 2.1 asks for answers of up to 32,000 after 85 kB of instructions and tools.
CODING_CONTEXT = 65536

# What a smaller type of KV cache costs, and who measured it.
COST_OF_CACHES = {
    "fp8": ("half the memory; 94 to 99 % of the scores of 16 bits", "vLLM blog, 2026-04-22"),
    "q8_0": (
        "half the memory; the probabilities of the next token change little",
        "ggml-org/llama.cpp#7412, #21038",
    ),
    "q4_0": ("a quarter of the memory; answers after long prompts get worse", "ggml-org/llama.cpp#7412, #21038"),
}

# What a deployment is useful with: tokens of context, and sequences. The first for GPUs that several people share.
SHARED, SINGLE = (131072, 8), (65536, 2)
SHARED_GIB = 64  # memory of all GPUs of a model from which several people share it

# Bytes that SGLang keeps for its image encoder if it chooses its share itself: `adjust_mem_fraction_for_vlm` of 0.5.23.
FOR_IMAGES = 8 * GIB

OF_MEMORY = "memory"  # origin of sizes that the memory decides
MANY = (128, 64, 32, 16, 8, 4, 2)  # numbers of sequences to choose from
USUAL_SEQUENCES = 4  # sequences that memory and speed are estimated for if max_num_seqs is left to the engine
CPU_BLOCK, GPU_BLOCK = 128, 16  # smallest tokens per block of the KV cache, of the CPU engine and on a GPU


def sizing_of(
    settings: Settings,
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    *,
    memory: int,
    draft_tokens: int,
) -> Sizing:
    """The sizes of one copy that settings lead to.

    `memory` is that of one GPU in bytes, `draft_tokens` 0 without a drafter.
    """
    kind, kv_cache_dtype, space = engine.kind, settings.kv_cache_dtype or "auto", settings.vllm_cpu_kvcache_space
    kv_cache_dtype = "fp8" if pair.target.forced_fp8_kv and kv_cache_dtype == "auto" else kv_cache_dtype
    unified = profile.hardware.unified and not engine.cpu
    is_fp8 = kv_cache_dtype in ("fp8", "fp8_e4m3")
    # copies on processors share the machine's memory
    memory = memory // settings.data_parallel_size if engine.cpu else memory
    return Sizing(
        memory=max(memory - _prompt_cache(settings, profile, engine), 1),
        utilization=utilization(settings, profile, engine),
        gpus=settings.tensor_parallel_size or 1,
        max_model_len=settings.max_model_len or pair.shape.context,
        max_num_seqs=settings.max_num_seqs or USUAL_SEQUENCES,
        max_num_batched_tokens=settings.max_num_batched_tokens or PROMPT_TOKENS,
        draft_tokens=draft_tokens,
        kv_cache_dtype=kv_cache_dtype,
        prefix_caching=bool(settings.enable_prefix_caching),
        block_tokens=CPU_BLOCK
        if engine.cpu
        else _block_tokens(settings, profile, pair, engine, draft_tokens, is_fp8=is_fp8),
        states=kind.recurrent_states,
        drafter_kv_cache_dtype=settings.dflash_kv_cache_dtype or kind.drafter_kv_cache_dtype,
        whole_contexts=kind.whole_contexts,
        caches=kind.drafting_caches if draft_tokens else 1,
        # vLLM's platforms/cpu.py turns asynchronous scheduling off
        steps_in_flight=1 if engine.cpu else kind.steps_in_flight,
        drafter_windows="drafter-windows" in engine.abilities,
        most_at_once=kind.most_at_once,
        reserve_within=kind.utilization_covers_activations,
        cache_bytes=int(space * GIB) if space is not None and engine.cpu else None,
        unified=unified,
        state_ratio=kind.state_ratio if settings.enable_prefix_caching is not False else None,
        eager=settings.enforce_eager,
        # an engine without a share takes what its sizes need, which are chosen here
        kept=int(profile.hardware.system_gib * GIB) if unified and kind.utilization is None else 0,
    )


def proposed_sizing(
    settings: Settings, profile: Profile, pair: ModelPair, engine: EngineRelease, *, memory: int, draft_tokens: int
) -> Sizing:
    """As `sizing_of`, for settings of a profile: sizes that they leave open are the useful ones.

    On unified memory the system keeps its part, whatever their share.
    """
    sizing = sizing_of(settings, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)
    length, sequences = useful_sizes(profile)
    sizing = replace(
        sizing,
        max_model_len=settings.max_model_len or min(length, pair.shape.context),
        max_num_seqs=settings.max_num_seqs or sequences,
    )
    return replace(sizing, kept=int(profile.hardware.system_gib * GIB)) if sizing.unified else sizing


def _prompt_cache(settings: Settings, profile: Profile, engine: EngineRelease) -> int:
    """Bytes of the weights' memory that prompts of earlier requests may take."""
    shared = profile.hardware.unified or profile.match.gpus == 0
    return (settings.prompt_cache_mib << 20) if shared and engine.kind.knows(Settings.prompt_cache_mib) else 0


def _block_tokens(
    settings: Settings, profile: Profile, pair: ModelPair, engine: EngineRelease, draft_tokens: int, *, is_fp8: bool
) -> int:
    """Tokens per block before they are aligned: the most that a backend reads.

    vLLM asks the drafter's backend too, if it has layers, and with the target's heads: those of the configuration.
    Source: `_preferred_block_size_for_backends` of vLLM's platforms/interface.py, `_get_fa4_hd256_block_size` and
    `_get_sm90_fa4_fp8_kv_block_size` of v1/attention/backends/flash_attn.py, 0.33.0.
    """
    full = pair.shape.full_attention
    if full is None:
        return GPU_BLOCK
    # an MTP head has the target's backend
    of_drafter = settings.dflash_attention_backend if draft_tokens and not settings.uses_mtp_head else ""
    readers = [backend_on(profile, engine, name) for name in (settings.attention_backend, of_drafter) if name]
    known = ({**one.block_tokens, **(one.fp8_block_tokens if is_fp8 else {})} for one in readers if one is not None)
    return max((blocks.get(full.head_dim, GPU_BLOCK) for blocks in known), default=GPU_BLOCK)


def useful_sizes(profile: Profile) -> tuple[int, int]:
    """Context and sequences that a deployment on this hardware is useful with."""
    return SHARED if profile.gpus * profile.hardware.memory_gib >= SHARED_GIB else SINGLE


def utilization(settings: Settings, profile: Profile, engine: EngineRelease) -> float:
    """The share of a GPU's memory that the engine claims: the setting, else its default within the profile's limit."""
    default = engine.kind.utilization or 1.0
    return settings.gpu_memory_utilization or min(default, profile.hardware.most_utilisation)


def most_share(profile: Profile, pair: ModelPair, sizing: Sizing) -> float:
    """The largest share, in hundredths, for an engine that takes activations, graphs and images from outside of it.

    That of the sizing if it is larger, and for engines that count them, or whose memory is the system's.
    """
    if sizing.reserve_within or sizing.whole_contexts or sizing.unified:
        return sizing.utilization
    outside = reserve(pair, sizing).total + (FOR_IMAGES if pair.sees else 0)
    most = math.floor(100 * (1 - outside / sizing.memory)) / 100
    return max(sizing.utilization, min(most, profile.hardware.most_utilisation))


def budget_for(sequences: int, draft_tokens: int, budget: int, prompts: int = PROMPT_TOKENS) -> int:
    """max_num_batched_tokens for this many sequences: `budget` if their drafts and `prompts` tokens fit into it.

    Else the next multiple of 1024 that has room for them.
    """
    needed = sequences * positions(draft_tokens) + prompts
    return budget if budget >= needed else -(-needed // 1024) * 1024


def budget_of(settings: Settings, sequences: int) -> int:
    """max_num_batched_tokens that these settings need for this many sequences, with room for prompts."""
    return budget_for(sequences, settings.draft_tokens, settings.max_num_batched_tokens or 0)


def smaller_steps(sizing: Sizing, engine: EngineRelease) -> Iterator[Sizing]:
    """The same with half, a quarter ... of the tokens of a step, whose activations take less memory."""
    if engine.cpu or not engine.kind.knows(Settings.max_num_batched_tokens):
        return
    # vLLM computes a prompt in several steps, and warns below PROMPT_TOKENS
    least = budget_for(sizing.max_num_seqs, sizing.draft_tokens, 0, prompts=LEAST_CONTEXT)
    while sizing.max_num_batched_tokens // 2 >= least:
        sizing = replace(sizing, max_num_batched_tokens=sizing.max_num_batched_tokens // 2)
        yield sizing


def machine_settings(profile: Profile, engine: EngineRelease, decisions: Iterable[Decision] = ()) -> Settings:
    """The profile's settings for an engine, without those that it does not have, and those decided for the machine.

    Raises SettingsRefused.
    """
    known = setting_names(engine.engine)
    chosen = profile.settings_for(engine.name).items()
    with refusals_of_env():
        values = {name: str(choice.value) for name, choice in chosen if name in known}
        return Settings(values | {one.name: one.value for one in decisions})


def fits_at_all(
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    *,
    memory: int,
    gpus: int | None = None,
    length: int = LEAST_CONTEXT,
) -> bool:
    """Whether one sequence of this length fits: a smaller deployment is of no use.

    `gpus`: those of the profile if left out.
    """
    chosen, most = machine_settings(profile, engine), pair.drafter.most_draft_tokens
    draft_tokens = min(chosen.dflash_num_spec_tokens or most, most)
    sizing = proposed_sizing(chosen, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)
    sizing = replace(sizing, gpus=gpus or sizing.gpus, max_num_seqs=1, max_model_len=length)
    sizing = replace(sizing, utilization=most_share(profile, pair, sizing))
    return any(fit(pair, one).fits for one in (sizing, *smaller_steps(sizing, engine)))


def sized(
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    choice: Choice,
    goal: Goal | None,
    *,
    memory: int,
    decisions: Iterable[Decision] = (),
    draft_tokens: int | None = None,
) -> Sizer:
    """The sizes of a pair on this hardware, with what was decided for the machine before.

    `memory` is that of one GPU in bytes. `draft_tokens` is a number that a recipe or a published figure has.
    """
    chosen = machine_settings(profile, engine, decisions)
    wanted, most = draft_tokens or chosen.dflash_num_spec_tokens, pair.drafter.most_draft_tokens
    tokens = draft_tokens or min(wanted or most, most)
    sizing = proposed_sizing(chosen, profile, pair, engine, memory=memory, draft_tokens=tokens if choice.drafter else 0)
    sizer = Sizer(profile, pair, engine, sizing, measured=wanted is not None, chosen=chosen)
    sizer.decide(choice, goal)
    return sizer


class Sizer:
    """Adapts the sizes of one plan, and records the reasons."""

    def __init__(
        self,
        profile: Profile,
        pair: ModelPair,
        engine: EngineRelease,
        sizing: Sizing,
        *,
        measured: bool = False,
        chosen: Settings | None = None,
    ) -> None:
        """`measured`: the number of draft tokens was measured on this hardware. `chosen`: the profile's settings."""
        self._chosen = chosen
        self._measured = measured
        self._measured_with = sizing.max_num_seqs
        self._profile = profile
        self._pair = pair
        self._engine = engine
        self.sizing = sizing
        self._decisions: dict[str, Decision] = {}
        self._limit = engine.limit_of_sequences if sizing.draft_tokens else None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The settings that differ from those of profile and engine."""
        return tuple(self._decisions.values())

    def decide(self, choice: Choice, goal: Goal | None) -> None:
        """Decide all sizes: first those of the profile, then what was asked for, then what the memory allows."""
        # first: an engine may take the memory of all sequences when it starts
        self._sequences(self.sizing.max_num_seqs, "", "")
        if choice.max_model_len is None and self._chosen is not None:
            self._useful(self._chosen)
        if goal is not None:
            self._for_goal(goal)
        if choice.concurrency is not None:
            self._sequences(choice.concurrency, "--concurrency", "as requested")
        if self.sizing.draft_tokens and choice.concurrency is not None:
            self._best_draft_tokens(choice.concurrency)
        if choice.max_model_len is not None:
            self._length(choice.max_model_len, "--max-model-len", "as requested")
            self._larger_share()
            self._smaller_cache("--max-model-len", sequences=self._held(), exact=True)
        elif self.sizing.max_model_len > (longest := self._pair.shape.context):
            self._length(longest, f"pair {self._pair.name}", "the longest sequence that the target was made for")
        if choice.max_model_len is not None or goal in {"context", "coding"}:
            self._smaller_cache(f"--goal {goal}" if choice.max_model_len is None else "--max-model-len")
        self._larger_share()
        # before memory is divided: more tokens in a step take some of it
        self._enough_budget()
        self._smaller_steps()
        self._within_memory(fixed_length=choice.max_model_len is not None, fixed_seqs=choice.concurrency is not None)
        if self.sizing.unified and self._engine.kind.utilization is not None:
            self._share()

    def _useful(self, chosen: Settings) -> None:
        """The sizes that the profile leaves open: a useful context, longer if half of the sequences can have it."""
        length, sequences = useful_sizes(self._profile)
        usual = f"{length} tokens and {sequences} sequences are useful on a machine of this size"
        if chosen.max_num_seqs is None:
            self._sequences(self.sizing.max_num_seqs, "useful", usual, always=True)
        if chosen.max_model_len is not None:
            return
        self._length(self.sizing.max_model_len, "useful", usual, always=True)
        held = self._held()
        self._larger_share()
        self._smaller_steps_for(1)
        self._smaller_cache("useful", sequences=held, exact=True)
        longer = [self._pair.shape.context >> step for step in range(4)]
        for tokens in (tokens for tokens in longer if tokens > self.sizing.max_model_len):
            if fit(self._pair, replace(self.sizing, max_model_len=tokens)).sequences >= max(held / 2, 1):
                self._length(tokens, "useful", f"{usual}; the memory holds longer ones")
                return

    def _larger_share(self) -> None:
        """The least share in which one sequence of the full length fits, else the largest."""
        before, most = self.sizing.utilization, most_share(self._profile, self._pair, self.sizing)
        while not self._holds(1) and self.sizing.utilization < most:
            self.sizing = replace(self.sizing, utilization=round(self.sizing.utilization + 0.01, 2))
        share = self.sizing.utilization
        if share > before:
            rest = f"{(1 - share) * self.sizing.memory / GIB:.1f} GiB remain for activations, graphs and images"
            reason = f"a sequence of {self.sizing.max_model_len} tokens does not fit in a share of {before}; {rest}"
            source = "SGLang 0.5.23 arg_groups/memory_hook.py keeps 8 GiB for images; others run 0.82 to 0.945 "
            source += "(sgl-project/sglang#35663)"
            field = Settings.gpu_memory_utilization
            self._decisions[field.name] = decided(field, share, OF_MEMORY, reason, source)

    def _smaller_steps_for(self, sequences: int) -> None:
        """Steps of half or a quarter of the tokens, as long as they hold a whole prompt's part, for more sequences."""
        for step in smaller_steps(self.sizing, self._engine):
            if self._holds(sequences) or step.max_num_batched_tokens < PROMPT_TOKENS:
                return
            tokens = step.max_num_batched_tokens
            reason = f"larger steps take memory that {sequences} sequences need; {PROMPT_TOKENS} tokens are enough"
            self._change(Settings.max_num_batched_tokens, tokens, step, OF_MEMORY, reason)

    def _for_goal(self, goal: Goal) -> None:
        origin = f"--goal {goal}"
        if goal == "latency":
            self._sequences(
                min(4, self.sizing.max_num_seqs), origin, "few sequences, so that no request waits for others"
            )
        elif goal == "throughput":
            self._length(
                min(SHORT_CONTEXT, self.sizing.max_model_len),
                origin,
                "short contexts leave room for many sequences",
            )
            if self.sizing.draft_tokens:
                self._best_draft_tokens(MANY[1])
            self._sequences(self._most_sequences(), origin, "as many sequences as the memory has states for")
        elif goal == "coding":
            if self.sizing.max_model_len < CODING_CONTEXT:
                why = "room for the instructions, tools and files of a coding agent"
                self._length(min(CODING_CONTEXT, self._pair.shape.context), origin, why)
        elif goal == "context":
            self._sequences(1, origin, "one sequence has all the memory")
            self._length(self._pair.shape.context, origin, "as long as target and memory allow")

    def _best_draft_tokens(self, concurrency: int) -> None:
        if concurrency == 1 or self._profile.match.gpus == 0 or (self._measured and concurrency <= self._measured_with):
            return
        best = best_draft_tokens(self._profile, self._pair, concurrency=concurrency, engine=self._engine)
        most = self.sizing.draft_tokens if self._measured else self._pair.drafter.most_draft_tokens
        if best != self.sizing.draft_tokens:
            tokens = max(1, min(best, most))
            reason = f"the fastest number at concurrency {concurrency}, by the speed model"
            if best == 0:
                reason = f"the smallest: the speed model expects no gain from drafts at concurrency {concurrency}"
            self._draft_tokens(tokens, "speed model", reason)

    def _within_memory(self, *, fixed_length: bool, fixed_seqs: bool) -> None:
        if not fixed_seqs:
            whole = fixed_length and self.sizing.whole_contexts
            length = self.sizing.max_model_len if whole else LEAST_CONTEXT
            most = self._most_sequences(up_to=self.sizing.max_num_seqs, length=length)
            if most < self.sizing.max_num_seqs:
                reason = "each sequence holds its own states and cache; more of them do not fit at the same time"
                self._sequences(most, OF_MEMORY, reason)
        if not fixed_length and not self._fits(self.sizing):
            length = max(fit(self._pair, self.sizing).longest, min(LEAST_CONTEXT, self.sizing.max_model_len))
            beside = f" and the {self.sizing.kept / GIB:.0f} GiB of the system" if self.sizing.kept else ""
            reason = f"the longest sequence that fits beside the weights{beside}; fewer draft tokens or a smaller "
            reason += "quantization leave room for more"
            if self._engine.kind.smaller_caches and self.sizing.kv_cache_dtype in KV_OF_16_BITS:
                reason += ", and so does a smaller cache (`--goal context`)"
            self._length(length, OF_MEMORY, reason)

    def _share(self) -> None:
        """The share of unified memory: what the sizes need, within what the system leaves."""
        field = Settings.gpu_memory_utilization
        share, reason = unified_share(self._pair, self.sizing)
        source = f"an estimate, plan/memory.py; what others run: `dflash-deploy profiles show {self._profile.name}`"
        self._decisions[field.name] = decided(field, share, OF_MEMORY, reason, source)

    def _most_sequences(self, up_to: int = MANY[0], length: int = LEAST_CONTEXT) -> int:
        """The largest number of sequences, of those to choose from, that fit with this context."""
        for count in sorted({up_to, *(number for number in MANY if number < up_to)}, reverse=True):
            short = replace(self.sizing, max_num_seqs=count, max_model_len=length)
            if fit(self._pair, short).sequences >= count:
                return count
        return 1

    def _fits(self, sizing: Sizing) -> bool:
        return fit(self._pair, sizing).fits

    def _enough_budget(self) -> None:
        """Make room for prompts beside the draft positions of a step."""
        if not self._engine.kind.speculation_budget or self._engine.cpu:
            return
        sizing = self.sizing
        budget = budget_for(sizing.max_num_seqs, sizing.draft_tokens, sizing.max_num_batched_tokens)
        if sizing.max_num_batched_tokens < budget:
            reason = f"{PROMPT_TOKENS} for prompts beside {positions(sizing.draft_tokens)} positions of each sequence"
            changed = replace(sizing, max_num_batched_tokens=budget)
            self._change(Settings.max_num_batched_tokens, budget, changed, "formula", reason)

    def _smaller_cache(self, origin: str, *, sequences: float = 0, exact: bool = False) -> None:
        """The most exact of the engine's types of KV cache in which the sequences fit, else the smallest.

        `exact`: only the most exact one of the smaller types, read by the backends that are planned.
        """
        caches = [name for name in self._engine.kind.smaller_caches if name in self._engine.kv_dtypes]
        if self.sizing.kv_cache_dtype in caches:
            caches = caches[caches.index(self.sizing.kv_cache_dtype) + 1 :]
        elif self.sizing.kv_cache_dtype not in KV_OF_16_BITS:
            return
        if self._holds(sequences):
            return
        for name in caches[:1] if exact else caches:
            readers = readers_of(self._profile, self._pair, self._engine, name, planned=exact)
            if readers is None:
                continue
            drafter = name if self.sizing.drafter_kv_cache_dtype else ""
            self.sizing = replace(self.sizing, kv_cache_dtype=name, drafter_kv_cache_dtype=drafter)
            cost, source = COST_OF_CACHES[name]
            many = f"{max(sequences, 1):.0f} x " if sequences > 1 else ""
            reason = f"{many}{self.sizing.max_model_len} tokens do not fit in 16 bits; {name} takes {cost}"
            fields = [Settings.kv_cache_dtype, *([Settings.dflash_kv_cache_dtype] if drafter == name else [])]
            for field in fields:
                self._decisions[field.name] = decided(field, name, origin, reason, source)
            self._read_by(readers, origin, name)
            if self._holds(sequences):
                return

    def _read_by(self, readers: tuple[str, str], origin: str, dtype: str) -> None:
        """The backends that read a cache of this type, if they are not those of the profile."""
        own = self._profile.settings_for(self._engine.name)
        for field, name in zip((Settings.attention_backend, Settings.dflash_attention_backend), readers, strict=True):
            if name and field.name in own and str(own[field.name].value) != name:
                reason = f"the profile's backend does not read a KV cache of {dtype}"
                self._decisions[field.name] = decided(field, name, origin, reason)

    def _held(self) -> int:
        """The sequences that should have the full length at the same time; an engine without a pool takes all."""
        most = self.sizing.max_num_seqs
        return most if self.sizing.whole_contexts else min(most, useful_sizes(self._profile)[1])

    def _holds(self, sequences: float) -> bool:
        """Whether this many sequences of the full length fit; those that must, if it is 0."""
        found = fit(self._pair, self.sizing)
        return found.fits and found.sequences >= sequences

    def _smaller_steps(self) -> None:
        """Fewer tokens in a step if their activations leave no room for a sequence: as many as allow a short one."""
        one = replace(self.sizing, max_num_seqs=1, max_model_len=min(SHORT_CONTEXT, self.sizing.max_model_len))
        if self._fits(replace(one, max_model_len=LEAST_CONTEXT)):
            return
        smaller = next((step for step in smaller_steps(one, self._engine) if self._fits(step)), None)
        if smaller is not None:
            tokens = smaller.max_num_batched_tokens
            changed = replace(self.sizing, max_num_batched_tokens=tokens)
            reason = f"a step of {self.sizing.max_num_batched_tokens} tokens leaves no memory for a sequence"
            self._change(Settings.max_num_batched_tokens, tokens, changed, OF_MEMORY, reason)

    def _length(self, tokens: int, origin: str, reason: str, *, always: bool = False) -> None:
        changed = replace(self.sizing, max_model_len=tokens)
        self._change(Settings.max_model_len, tokens, changed, origin, reason, always=always)

    def _sequences(self, count: int, origin: str, reason: str, *, always: bool = False) -> None:
        """This many sequences, but no more than the release serves rightly with a drafter."""
        source = ""
        if self._limit is not None and count > self._limit[0]:
            (count, bug), origin = self._limit, f"engine {self._engine.name}"
            reason, source = bug.what, bug.source
        changed = replace(self.sizing, max_num_seqs=count)
        self._change(Settings.max_num_seqs, count, changed, origin, reason, source, always=always)

    def _draft_tokens(self, tokens: int, origin: str, reason: str) -> None:
        self.sizing = replace(self.sizing, draft_tokens=tokens)
        field = Settings.dflash_num_spec_tokens
        self._decisions[field.name] = decided(field, tokens, origin, reason)

    def _change(
        self,
        field: Field[int | None],
        value: int,
        sizing: Sizing,
        origin: str,
        reason: str,
        source: str = "",
        *,
        always: bool = False,
    ) -> None:
        """Change a size, and record why; one that stays the same is recorded only if `always`."""
        if sizing == self.sizing and field.name not in self._decisions and not always:
            return
        self.sizing = sizing
        self._decisions[field.name] = decided(field, value, origin, reason, source)
