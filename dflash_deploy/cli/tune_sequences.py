"""The second half of `tune`: do more or fewer sequences at the same time answer more, with the drafts as proposed?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import note

if TYPE_CHECKING:
    from dflash_deploy.bench.tune_choose import Verdict
    from dflash_deploy.cli.tuning import Tried, Tuning
    from dflash_deploy.client import Endpoint
    from dflash_deploy.plan import Plan


@dataclass(frozen=True)
class Sequences:
    """Another MAX_NUM_SEQS as measured, under so many streams that all slots of either are taken."""

    count: int
    streams: int
    before: Tried
    after: Tried
    verdict: Verdict

    @property
    def settings(self) -> Mapping[str, str]:
        """The lines of `.env` that make it so; none where it was not faster."""
        return self.after.settings if self.verdict.wins else {}

    @property
    def title(self) -> str:
        """The number in words."""
        return f"{self.count} sequences at the same time" if self.count > 1 else "1 sequence at a time"


def try_sequences(tuning: Tuning, base: Tried, endpoint: Endpoint, become: Callable[[Plan], None]) -> Sequences | None:
    """Measure the number of sequences that the figures speak for beside the one that is there; `None`: for no other.

    `base` is what is proposed, or what `.env` has.
    """
    from dflash_deploy.bench.tune_choose import compared
    from dflash_deploy.bench.tune_slots import worth_trying

    if not tuning.slots_written:
        note("sequences: MAX_NUM_SEQS is left to the engine, and nothing is proposed for it")
        return None
    room = partial(_has_room, tuning, base.settings)
    count = worth_trying(tuning.sweep.concurrency, base.rates, tuning.slots, room)
    if count is None:
        note(f"sequences: nothing speaks for more or fewer than {tuning.slots}, or there is no memory for more")
        return None
    streams = max(count, tuning.slots)
    sweep = replace(tuning.sweep, concurrency=(streams,))
    before = tuning.measure(endpoint, become, f"{tuning.slots} sequences", base.settings, sweep)
    settings = _settings_for(tuning, base.settings, count)
    after = tuning.measure(endpoint, become, f"{count} sequences", settings, sweep)
    return Sequences(count, streams, before, after, compared(after.rates, before.rates))


def _has_room(tuning: Tuning, base: Mapping[str, str], count: int) -> bool:
    """Whether the rules let so many be started, and the cache holds a short sequence for each."""
    plan = tuning.plan_with(_settings_for(tuning, base, count))
    return not plan.errors and (plan.memory is None or plan.memory.short_sequences >= count)


def _settings_for(tuning: Tuning, base: Mapping[str, str], count: int) -> dict[str, str]:
    """The settings of `base` with so many sequences, and a token budget that their drafts fit into."""
    from dflash_deploy.plan.sizes import budget_for
    from dflash_deploy.serve.settings import DRAFT_TOKENS, PROMPT_TOKENS

    plan = tuning.plan_with(base)
    settings = {**base, "MAX_NUM_SEQS": str(count)}
    written = plan.values.get("MAX_NUM_BATCHED_TOKENS", "")
    if written.isdigit() and plan.speculating:
        draft_tokens = int(plan.values.get("DFLASH_NUM_SPEC_TOKENS") or DRAFT_TOKENS)
        # vLLM warns below so many tokens for prompts; the CPU engine does not, and its steps are better kept short
        prompts = 0 if plan.engine.cpu else PROMPT_TOKENS
        budget = budget_for(count, draft_tokens, int(written), prompts)
        if budget != int(written):
            settings["MAX_NUM_BATCHED_TOKENS"] = str(budget)
    return settings
