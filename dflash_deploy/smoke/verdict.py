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
    first = counted.acceptance_by_position[0] if counted.acceptance_by_position else 0.0
    says = f"acceptance length {length:.2f} over {counted.drafts} drafts; first draft token accepted {first:.0%}"
    if length < BROKEN_BELOW or first < BROKEN_FIRST_POSITION:
        return Verdict(
            "broken",
            says,
            "drafts are rejected from the first position: the drafter does not belong to this target, or the release "
            "mishandles it; set ENABLE_PREFIX_CACHING=off, then check the drafter's card for its target",
        )
    if length < WEAK_BELOW:
        return Verdict("weak", says, "lower DFLASH_NUM_SPEC_TOKENS: late positions cost time and are seldom accepted")
    return Verdict("good", says)
