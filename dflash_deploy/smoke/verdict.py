"""What an acceptance length means.

The bands are those that people measured on GB10 and consumer GPUs with 10 to 15 draft tokens: code and mathematics 4 to
8, prose and chat 2 to 3.5; below 1.3, or with fewer than 30 % of first draft tokens accepted, the set-up was at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_deploy.client import SpecCounters

BROKEN_BELOW = 1.3
BROKEN_FIRST_POSITION = 0.3
WEAK_BELOW = 2.0
GUESSED = 0.1
"""The share of accepted tokens below which a place of a draft is no better than a guess."""


@dataclass(frozen=True)
class Verdict:
    """A grade of the drafts made, in words, and what to do where it is not good."""

    grade: Literal["good", "weak", "broken", "none"]
    says: str
    hint: str = ""


def judge_drafts(counted: SpecCounters) -> Verdict:
    """Grade what the counters gained during a run of real requests."""
    length = counted.acceptance_length
    if length is None:
        return Verdict(
            "none",
            "no draft was made: the target decodes plainly",
            "look for 'speculative' in `dflash-deploy logs`; DFLASH_DRAFTER in .env must name the drafter",
        )
    shares = counted.acceptance_by_position
    says = f"acceptance length {length:.2f} over {counted.drafts} drafts"
    says += f"; first draft token accepted {shares[0]:.0%}" if shares else ""
    if length < BROKEN_BELOW or (shares and shares[0] < BROKEN_FIRST_POSITION):
        return Verdict("broken", says, _cause(shares))
    if length < WEAK_BELOW:
        return Verdict("weak", says, "lower DFLASH_NUM_SPEC_TOKENS: late positions cost time and are seldom accepted")
    return Verdict("good", says)


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
