"""How long, how many, how many draft tokens: the profile's sizes, bent to the wishes and to the memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dflash_deploy.catalog import EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.plan.command import refusals_of_env
from dflash_deploy.plan.memory import GIB, LEAST_CONTEXT, Sizing, fit
from dflash_deploy.plan.result import Decision, decided
from dflash_deploy.plan.speed import best_draft_tokens
from dflash_deploy.plan.wishes import Choice, Goal
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import PROMPT_TOKENS, Settings

SHORT_CONTEXT = 8192
"""Tokens of context if many short requests are the goal."""

MANY = (128, 64, 32, 16, 8, 4, 2)
"""Numbers of sequences that people choose."""

USUAL_SEQUENCES = 4
"""Sequences that memory and speed are estimated for if max_num_seqs is left to the engine."""

CPU_BLOCK = 128
"""Tokens of a block of the KV cache that the CPU engine starts from; GPUs have 16."""


def sizing_of(
    settings: Settings,
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    *,
    memory: int,
    draft_tokens: int,
) -> Sizing:
    """The sizes that settings come to. `memory` is that of one GPU in bytes, `draft_tokens` 0 without a drafter."""
    kind, kv_cache_dtype, space = engine.kind, settings.kv_cache_dtype or "auto", settings.vllm_cpu_kvcache_space
    return Sizing(
        memory=memory,
        utilization=utilization(settings, profile, engine),
        gpus=settings.tensor_parallel_size or 1,
        max_model_len=settings.max_model_len or pair.shape.context,
        max_num_seqs=settings.max_num_seqs or USUAL_SEQUENCES,
        max_num_batched_tokens=settings.max_num_batched_tokens or PROMPT_TOKENS,
        draft_tokens=draft_tokens,
        kv_cache_dtype="fp8" if pair.target.forced_fp8_kv and kv_cache_dtype == "auto" else kv_cache_dtype,
        prefix_caching=bool(settings.enable_prefix_caching),
        block_tokens=CPU_BLOCK if engine.cpu else 16,
        states=kind.recurrent_states,
        reserve_within=kind.utilization_covers_activations,
        cache_bytes=int(space * GIB) if space is not None and engine.cpu else None,
    )


def utilization(settings: Settings, profile: Profile, engine: EngineRelease) -> float:
    """The share of a GPU's memory that the engine claims: as set, else its own default within the profile's limit."""
    default = engine.kind.utilization or 1.0
    return settings.gpu_memory_utilization or min(default, profile.hardware.most_utilisation)


def budget_for(sequences: int, draft_tokens: int, budget: int, prompts: int = PROMPT_TOKENS) -> int:
    """MAX_NUM_BATCHED_TOKENS for so many sequences: as it is, or enough for their drafts and `prompts` tokens beside.

    A multiple of 1024 where it is raised.
    """
    needed = sequences * (draft_tokens + 1) + prompts
    return budget if budget >= needed else -(-needed // 1024) * 1024


def budget_of(settings: Settings, sequences: int) -> int:
    """MAX_NUM_BATCHED_TOKENS that these settings need for so many sequences, with room for prompts."""
    return budget_for(sequences, settings.draft_tokens, settings.max_num_batched_tokens or 0)


def machine_settings(profile: Profile, engine: EngineRelease) -> Settings:
    """What profile and engine say about the settings that the engine has. Raises SettingsRefused for a wrong value."""
    known = setting_names(engine.engine)
    chosen = profile.settings_for(engine.name).items()
    with refusals_of_env():
        return Settings({name: str(choice.value) for name, choice in chosen if name in known})


def fits_at_all(profile: Profile, pair: ModelPair, engine: EngineRelease, *, memory: int) -> bool:
    """Whether a single short sequence fits: nothing smaller would be of use."""
    chosen, most = machine_settings(profile, engine), pair.drafter.most_draft_tokens
    draft_tokens = min(chosen.dflash_num_spec_tokens or most, most)
    sizing = sizing_of(chosen, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)
    return fit(pair, replace(sizing, max_num_seqs=1, max_model_len=LEAST_CONTEXT)).fits


class Sizer:
    """Bends the sizes of one plan, remembering why."""

    def __init__(
        self, profile: Profile, pair: ModelPair, engine: EngineRelease, sizing: Sizing, *, stated: bool = False
    ) -> None:
        """`stated` says that somebody measured the draft tokens on this hardware."""
        self._stated = stated
        self._measured_with = sizing.max_num_seqs
        self._profile = profile
        self._pair = pair
        self._engine = engine
        self.sizing = sizing
        self._decisions: dict[str, Decision] = {}

    def decide(self, choice: Choice, goal: Goal | None) -> Iterator[Decision]:
        """The settings that differ from those of profile and engine."""
        if goal is not None:
            self._for_goal(goal)
        if choice.concurrency is not None:
            self._sequences(choice.concurrency, "--concurrency", "as asked for")
        if self.sizing.draft_tokens and choice.concurrency is not None:
            self._best_draft_tokens(choice.concurrency)
        if choice.max_model_len is not None:
            self._length(choice.max_model_len, "--max-model-len", "as asked for")
        else:
            self._within_model()
        # before memory is shared out: a larger budget takes some of it
        self._enough_budget()
        self._within_memory(fixed_length=choice.max_model_len is not None, fixed_seqs=choice.concurrency is not None)
        yield from self._decisions.values()

    def _for_goal(self, goal: Goal) -> None:
        origin = f"--goal {goal}"
        if goal == "latency":
            self._sequences(min(4, self.sizing.max_num_seqs), origin, "few streams, none of which waits for others")
        elif goal == "throughput":
            self._length(
                min(SHORT_CONTEXT, self.sizing.max_model_len),
                origin,
                "short contexts leave room for many streams",
            )
            if self.sizing.draft_tokens:
                self._best_draft_tokens(MANY[1])
            self._sequences(self._most_sequences(), origin, "as many streams as the memory has states for")
        else:
            self._sequences(1, origin, "one stream has all the memory")
            self._length(self._pair.shape.context, origin, "as long as target and memory allow")

    def _best_draft_tokens(self, streams: int) -> None:
        if streams == 1 or self._profile.match.gpus == 0 or (self._stated and streams <= self._measured_with):
            return
        best = best_draft_tokens(self._profile, self._pair, concurrency=streams)
        most = self.sizing.draft_tokens if self._stated else self._pair.drafter.most_draft_tokens
        if best != self.sizing.draft_tokens:
            tokens = max(1, min(best, most))
            reason = f"by the speed model the best number where {streams} are answered at the same time"
            if best == 0:
                reason = f"the fewest: the speed model expects no gain from drafts with {streams} at the same time"
            self._draft_tokens(tokens, "speed model", reason)

    def _within_model(self) -> None:
        longest = self._pair.shape.context
        if self.sizing.max_model_len > longest:
            self._length(longest, f"pair {self._pair.name}", "the longest sequence that the target was made for")

    def _within_memory(self, *, fixed_length: bool, fixed_seqs: bool) -> None:
        if not fixed_seqs:
            most = self._most_sequences(up_to=self.sizing.max_num_seqs)
            if most < self.sizing.max_num_seqs:
                reason = "each sequence holds states and cache of its own; more of them would not fit at once"
                self._sequences(most, "memory", reason)
        if not fixed_length and not self._fits(self.sizing):
            length = self._longest()
            reason = (
                "the longest sequence that fits beside the weights; ask for fewer draft tokens or another form for more"
            )
            self._length(length, "memory", reason)

    def _most_sequences(self, up_to: int = MANY[0]) -> int:
        """How many sequences of the least length fit, of the numbers people choose."""
        for count in sorted({up_to, *(number for number in MANY if number < up_to)}, reverse=True):
            short = replace(self.sizing, max_num_seqs=count, max_model_len=LEAST_CONTEXT)
            if fit(self._pair, short).sequences >= count:
                return count
        return 1

    def _longest(self) -> int:
        """The longest sequence that fits, in steps of 1024 tokens; the least length where nothing does."""
        low, high = LEAST_CONTEXT // 1024, self.sizing.max_model_len // 1024
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(replace(self.sizing, max_model_len=middle * 1024)):
                low = middle
            else:
                high = middle - 1
        return min(low * 1024, self.sizing.max_model_len)

    def _fits(self, sizing: Sizing) -> bool:
        return fit(self._pair, sizing).fits

    def _enough_budget(self) -> None:
        """Prompts and draft positions share one budget."""
        if not self._engine.kind.speculation_budget or self._engine.cpu:
            return
        sizing = self.sizing
        budget = budget_for(sizing.max_num_seqs, sizing.draft_tokens, sizing.max_num_batched_tokens)
        if sizing.max_num_batched_tokens < budget:
            reason = f"{PROMPT_TOKENS} for prompts beside {sizing.draft_tokens + 1} positions of each sequence"
            changed = replace(sizing, max_num_batched_tokens=budget)
            self._change(Settings.max_num_batched_tokens, budget, changed, "budget formula", reason)

    def _length(self, tokens: int, origin: str, reason: str) -> None:
        self._change(Settings.max_model_len, tokens, replace(self.sizing, max_model_len=tokens), origin, reason)

    def _sequences(self, count: int, origin: str, reason: str) -> None:
        self._change(Settings.max_num_seqs, count, replace(self.sizing, max_num_seqs=count), origin, reason)

    def _draft_tokens(self, tokens: int, origin: str, reason: str) -> None:
        self.sizing = replace(self.sizing, draft_tokens=tokens)
        field = Settings.dflash_num_spec_tokens
        self._decisions[field.name] = decided(field, tokens, origin, reason)

    def _change(self, field: Field[int | None], value: int, sizing: Sizing, origin: str, reason: str) -> None:
        if sizing == self.sizing and field.name not in self._decisions:
            return
        self.sizing = sizing
        self._decisions[field.name] = decided(field, value, origin, reason)
