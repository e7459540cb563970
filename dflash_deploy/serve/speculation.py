"""How draft tokens are made, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_deploy.serve.field import Schedule

# Values of DFLASH_DRAFTER that switch speculative decoding off.
OFF = frozenset({"", "off", "none", "false", "no", "0"})

MTP = "mtp"  # value of DFLASH_DRAFTER for the target's own MTP head, which comes with its weights
DRAFT_TOKENS = 15  # draft tokens per step if DFLASH_NUM_SPEC_TOKENS is empty: what a drafter's usual block of 16 allows
PROMPT_TOKENS = 8192  # tokens of a step that must remain for prompts beside the draft positions; vLLM warns below that


def positions(draft_tokens: int) -> int:
    """Positions of a sequence that one step verifies: its draft tokens and the token that the target adds."""
    return draft_tokens + 1


@dataclass(frozen=True)
class Speculation:
    """How draft tokens are made. `draft_tokens` is per step, without the token that the target adds.

    `path` is the directory or file of the drafter's weights, `None` for the target's MTP head. `schedule` makes fewer
    draft tokens if many sequences share a step; empty: always as many.
    """

    path: str | None
    draft_tokens: int
    attention_backend: str
    kv_cache_dtype: str
    schedule: Schedule
