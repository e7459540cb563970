"""What an acceptance length means.

The bands are those that people measured on GB10 and consumer GPUs with 10 to 15 draft tokens: code and mathematics 4 to
8, prose and chat 2 to 3.5; below 1.3, or with fewer than 30 % of first draft tokens accepted, the set-up was at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.catalog.models import Acceptance
from dflash_deploy.client import SpecCounters
from dflash_deploy.plan.speed import at_draft_tokens

BROKEN_BELOW = 1.3
BROKEN_FIRST_POSITION = 0.3
WEAK_BELOW = 2.0
FAR_BELOW = 0.4
"""The share of what was measured for a pair, on the kind of work that suits it least, below which something is wrong.

The tiny pair with another mask token has 0.29 of it (1.75 of 6.14, vLLM 0.32.0) and would pass for weak; published
lengths of one pair differ by less than half over their workloads.
"""
GUESSED = 0.1
"""The share of accepted tokens below which a place of a draft is no better than a guess."""


@dataclass(frozen=True)
class AcceptanceGrade:
    """A grade of the drafts made, in words, and what to do where it is not good."""

    grade: Literal["good", "weak", "broken", "none"]
    says: str
    hint: str = ""


def grade_acceptance(counted: SpecCounters, known: Sequence[Acceptance] = ()) -> AcceptanceGrade:
    """Grade what the counters gained during a run of real requests; `known` is what others measured for the pair."""
    length = counted.acceptance_length
    if length is None:
        return AcceptanceGrade(
            "none",
            "no draft was made: the target decodes plainly",
            "look for 'speculative' in `dflash-deploy logs`; DFLASH_DRAFTER in .env must name the drafter",
        )
    shares = counted.acceptance_by_position
    says = f"acceptance length {length:.2f} over {counted.drafts} drafts"
    says += f"; first draft token accepted {shares[0]:.0%}" if shares else ""
    if length < BROKEN_BELOW or (shares and shares[0] < BROKEN_FIRST_POSITION):
        return AcceptanceGrade("broken", says, _cause(shares))
    draft_tokens = round(counted.draft_tokens / counted.drafts)
    expected = min((at_draft_tokens(measured, draft_tokens) for measured in known), default=0.0)
    if length < FAR_BELOW * expected:
        return AcceptanceGrade(
            "broken", f"{says}; at least {expected:.2f} was measured for this pair", _OTHER_THAN_TRAINED
        )
    if length < WEAK_BELOW:
        return AcceptanceGrade(
            "weak", says, "lower DFLASH_NUM_SPEC_TOKENS: late positions cost time and are seldom accepted"
        )
    return AcceptanceGrade("good", says)


_OTHER_THAN_TRAINED = (
    "drafts are right far less often than this drafter can: mask_token_id or the target layers in its config.json are "
    "not those of its training, or its weights are of another revision; `dflash-deploy pull --verify` compares them"
)


def _cause(shares: tuple[float, ...]) -> str:
    """Why drafts are rejected: at all places, or from the second one on, where a drafter sees mask tokens alone."""
    if shares and max(shares) < GUESSED:
        return (
            "no place of a draft is right more often than a guess: the drafter's weights are not those of this target "
            "(`dflash-deploy pull --verify` compares them), or its mask_token_id is not the one it was trained with"
        )
    return (
        "drafts are rejected from the first position: the drafter does not belong to this target, or the release "
        "mishandles it; set ENABLE_PREFIX_CACHING=off, then check the drafter's card for its target"
    )
