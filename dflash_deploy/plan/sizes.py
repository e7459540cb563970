"""How long, how many, how many draft tokens: the profile's sizes, bent to the wishes and to the memory there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dflash_deploy.catalog import EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.settings import setting_names, template_of
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.plan.memory import Sizing, fit
from dflash_deploy.plan.result import Setting
from dflash_deploy.plan.speed import best_draft_tokens
from dflash_deploy.plan.wishes import Choice, Goal

LEAST_CONTEXT = 2048
"""Tokens below which nobody wants to be served."""

PROMPT_TOKENS = 8192
"""Tokens of a step that are left for prompts beside the draft positions; vLLM warns below that."""

SHORT = 8192
"""Context that is enough where many short requests are the goal."""

MANY = (128, 64, 32, 16, 8, 4, 2)
LLAMACPP_STATES = 2
"""llama.cpp keeps the state and one to roll back to."""

MOST = 1e9
"""No size is as large as this."""

UTILISATION = 0.92
"""vLLM's own share of the memory, where no other is set."""

CPU_BLOCK = 128
"""Tokens of a block of the KV cache that the CPU engine starts from; GPUs have 16."""


def sizing_of(
    values: Mapping[str, str],
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    *,
    memory: int,
    draft_tokens: int,
) -> Sizing:
    """The sizes that settings come to. `memory` is that of one GPU in bytes, `draft_tokens` 0 without a drafter.

    Raises SettingsRefused for a size that is no number.
    """

    def number(name: str, otherwise: int) -> int:
        return int(_figure(name, values.get(name) or str(otherwise)))

    space, kv_cache_dtype = values.get("VLLM_CPU_KVCACHE_SPACE"), values.get("KV_CACHE_DTYPE") or "auto"
    return Sizing(
        memory=memory,
        utilisation=_figure(
            "GPU_MEMORY_UTILIZATION",
            values.get("GPU_MEMORY_UTILIZATION") or str(min(UTILISATION, profile.hardware.most_utilisation)),
        ),
        gpus=number("TENSOR_PARALLEL_SIZE", 1),
        max_model_len=number("MAX_MODEL_LEN", pair.shape.context),
        max_num_seqs=number("MAX_NUM_SEQS", 4),
        max_num_batched_tokens=number("MAX_NUM_BATCHED_TOKENS", PROMPT_TOKENS),
        draft_tokens=draft_tokens,
        kv_cache_dtype="fp8" if pair.target.forced_fp8_kv and kv_cache_dtype == "auto" else kv_cache_dtype,
        prefix_caching=(values.get("ENABLE_PREFIX_CACHING") or "off").lower() in {"on", "1", "true", "yes"},
        block_tokens=CPU_BLOCK if engine.cpu else 16,
        states=LLAMACPP_STATES if engine.engine.startswith("llamacpp") else None,
        reserve_within=engine.engine != "sglang",
        cache_bytes=int(_figure("VLLM_CPU_KVCACHE_SPACE", space) * 2**30) if space and engine.cpu else None,
    )


def budget_for(sequences: int, draft_tokens: int, budget: int, prompts: int = PROMPT_TOKENS) -> int:
    """MAX_NUM_BATCHED_TOKENS for so many sequences: as it is, or enough for their drafts and `prompts` tokens beside.

    A multiple of 1024 where it is raised.
    """
    needed = sequences * (draft_tokens + 1) + prompts
    return budget if budget >= needed else -(-needed // 1024) * 1024


def _figure(name: str, value: str) -> float:
    try:
        figure = float(value)
    except ValueError:
        figure = -1.0
    if not 0 < figure < MOST:
        raise SettingsRefused(f"{name}={value} is no size", hint=f"write {name} as a number, such as 8")
    return figure


def machine_values(profile: Profile, engine: EngineRelease) -> dict[str, str]:
    """What profile and engine say of the settings that the engine has."""
    known = setting_names(template_of(engine.engine))
    return {name: str(choice.value) for name, choice in profile.settings_for(engine.name).items() if name in known}


def fits_at_all(profile: Profile, pair: ModelPair, engine: EngineRelease, *, memory: int) -> bool:
    """Whether a single short sequence fits: nothing smaller would be of use."""
    values = {**machine_values(profile, engine), "MAX_NUM_SEQS": "1", "MAX_MODEL_LEN": str(LEAST_CONTEXT)}
    most = pair.drafter.block_size - 1
    draft_tokens = min(int(values.get("DFLASH_NUM_SPEC_TOKENS") or most), most)
    return fit(pair, sizing_of(values, profile, pair, engine, memory=memory, draft_tokens=draft_tokens)).fits


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
        self._reasons: dict[str, Setting] = {}

    def decide(self, choice: Choice, goal: Goal | None) -> Iterator[Setting]:
        """The settings that differ from those of profile and engine."""
        if goal is not None:
            self._for_goal(goal)
        if choice.concurrency is not None:
            self._set("MAX_NUM_SEQS", choice.concurrency, "--concurrency", "as asked for")
        if self.sizing.draft_tokens and choice.concurrency is not None:
            self._best_draft_tokens(choice.concurrency)
        if choice.max_model_len is not None:
            self._set("MAX_MODEL_LEN", choice.max_model_len, "--max-model-len", "as asked for")
        else:
            self._within_model()
        # before memory is shared out: a larger budget takes some of it
        self._enough_budget()
        self._within_memory(fixed_length=choice.max_model_len is not None, fixed_seqs=choice.concurrency is not None)
        yield from self._reasons.values()

    def _for_goal(self, goal: Goal) -> None:
        origin = f"--goal {goal}"
        if goal == "latency":
            self._set(
                "MAX_NUM_SEQS", min(4, self.sizing.max_num_seqs), origin, "few streams, none of which waits for others"
            )
        elif goal == "throughput":
            self._set(
                "MAX_MODEL_LEN",
                min(SHORT, self.sizing.max_model_len),
                origin,
                "short contexts leave room for many streams",
            )
            if self.sizing.draft_tokens:
                self._best_draft_tokens(MANY[1])
            self._set("MAX_NUM_SEQS", self._most_sequences(), origin, "as many streams as the memory has states for")
        else:
            self._set("MAX_NUM_SEQS", 1, origin, "one stream has all the memory")
            self._set("MAX_MODEL_LEN", self._pair.shape.context, origin, "as long as target and memory allow")

    def _best_draft_tokens(self, streams: int) -> None:
        if streams == 1 or self._profile.match.gpus == 0 or (self._stated and streams <= self._measured_with):
            return
        best = best_draft_tokens(self._profile, self._pair, concurrency=streams)
        most = self.sizing.draft_tokens if self._stated else self._pair.drafter.block_size - 1
        if best != self.sizing.draft_tokens:
            tokens = max(1, min(best, most))
            reason = f"by the speed model the best number where {streams} are answered at the same time"
            if best == 0:
                reason = f"the fewest: the speed model expects no gain from drafts with {streams} at the same time"
            self._set("DFLASH_NUM_SPEC_TOKENS", tokens, "speed model", reason)

    def _within_model(self) -> None:
        longest = self._pair.shape.context
        if self.sizing.max_model_len > longest:
            self._set(
                "MAX_MODEL_LEN", longest, f"pair {self._pair.name}", "the longest sequence that the target was made for"
            )

    def _within_memory(self, *, fixed_length: bool, fixed_seqs: bool) -> None:
        if not fixed_seqs:
            most = self._most_sequences(up_to=self.sizing.max_num_seqs)
            if most < self.sizing.max_num_seqs:
                reason = "each sequence holds states and cache of its own; more of them would not fit at once"
                self._set("MAX_NUM_SEQS", most, "memory", reason)
        if not fixed_length and not self._fits(self.sizing):
            length = self._longest()
            reason = (
                "the longest sequence that fits beside the weights; ask for fewer draft tokens or another form for more"
            )
            self._set("MAX_MODEL_LEN", length, "memory", reason)

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
        """vLLM and SGLang take prompts and draft positions from one budget."""
        if self._engine.engine not in {"vllm", "sglang"} or self._engine.cpu:
            return
        sizing = self.sizing
        budget = budget_for(sizing.max_num_seqs, sizing.draft_tokens, sizing.max_num_batched_tokens)
        if self._engine.engine == "vllm" and sizing.max_num_batched_tokens < budget:
            reason = f"{PROMPT_TOKENS} for prompts beside {self.sizing.draft_tokens + 1} positions of each sequence"
            self._set("MAX_NUM_BATCHED_TOKENS", budget, "budget formula", reason)

    def _set(self, name: str, value: int, origin: str, reason: str) -> None:
        fields = {
            "MAX_MODEL_LEN": "max_model_len",
            "MAX_NUM_SEQS": "max_num_seqs",
            "MAX_NUM_BATCHED_TOKENS": "max_num_batched_tokens",
            "DFLASH_NUM_SPEC_TOKENS": "draft_tokens",
        }
        if (
            name != "DFLASH_NUM_SPEC_TOKENS"
            and getattr(self.sizing, fields[name]) == value
            and name not in self._reasons
        ):
            return
        changes: dict[str, int] = {fields[name]: value}
        self.sizing = replace(self.sizing, **changes)  # type: ignore[arg-type]
        self._reasons[name] = Setting(name, str(value), origin, reason)
