"""The second half of `tune`: does another MAX_NUM_SEQS answer more tokens a second, with the drafts as proposed?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from dflash_deploy.plan.sizes import budget_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import PROMPT_TOKENS
from dflash_deploy.tuning.choose import Verdict, compared
from dflash_deploy.tuning.experiment import Experiment
from dflash_deploy.tuning.max_num_seqs import worth_trying
from dflash_deploy.tuning.rig import Rig, Tried


@dataclass(frozen=True)
class Sequences:
    """Another MAX_NUM_SEQS as measured, beside the one of `.env`, at a concurrency that fills either."""

    count: int
    streams: int
    before: Tried
    after: Tried
    verdict: Verdict

    @property
    def settings(self) -> Mapping[str, str]:
        """The lines of `.env` for it; empty if it was not faster."""
        return self.after.settings if self.verdict.wins else {}

    @property
    def title(self) -> str:
        """The number in words."""
        return f"{self.count} sequences at the same time" if self.count > 1 else "1 sequence at a time"


def try_sequences(rig: Rig, base: Tried) -> Sequences | None:
    """Measure the MAX_NUM_SEQS that the figures suggest beside the present one; `None` if they suggest no other.

    `base` is the proposal, or what `.env` has.
    """
    experiment, now = rig.experiment, rig.experiment.max_num_seqs
    if experiment.plan.settings.max_num_seqs is None:
        rig.reporter.note(f"sequences: {Settings.max_num_seqs} is left to the engine, so no other one is proposed")
        return None
    room = partial(_has_room, experiment, base.settings)
    count = worth_trying(experiment.sweep.concurrency, base.rates, now, room)
    if count is None:
        rig.reporter.note(f"sequences: no reason for more or fewer than {now}, or no memory for more")
        return None
    streams = max(count, now)
    sweep = replace(experiment.sweep, concurrency=(streams,))
    before = rig.measure(f"{now} sequences", base.settings, sweep)
    after = rig.measure(f"{count} sequences", _settings_for(experiment, base.settings, count), sweep)
    return Sequences(count, streams, before, after, compared(after.rates, before.rates))


def _has_room(experiment: Experiment, base: Mapping[str, str], count: int) -> bool:
    """Whether the rules allow this number, and the cache holds a short sequence for each."""
    plan = experiment.plan_with(_settings_for(experiment, base, count))
    return not plan.errors and (plan.memory is None or plan.memory.short_sequences >= count)


def _settings_for(experiment: Experiment, base: Mapping[str, str], count: int) -> dict[str, str]:
    """The settings of `base` with this number of sequences, and a MAX_NUM_BATCHED_TOKENS that their drafts fit into."""
    plan = experiment.plan_with(base)
    settings = {**base, Settings.max_num_seqs.name: str(count)}
    written = plan.settings.max_num_batched_tokens
    if written is not None and plan.speculating:
        # with fewer tokens for prompts vLLM warns; the CPU build does not, and its steps should stay short
        prompts = 0 if plan.engine.cpu else PROMPT_TOKENS
        wanted = budget_for(count, plan.settings.draft_tokens, written, prompts)
        if wanted != written:
            settings[Settings.max_num_batched_tokens.name] = str(wanted)
    return settings
