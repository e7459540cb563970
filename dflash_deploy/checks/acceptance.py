"""Grades of the acceptance length.

The bands are measurements on GB10 and consumer GPUs with 10 to 15 draft tokens: code and mathematics 4 to 8, prose and
chat 2 to 3.5. Below 1.3, or with less than 30 % of first draft tokens accepted, the setup was wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dflash_deploy.errors import DOCS
from dflash_deploy.plan.speed import at_draft_tokens
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.models import Acceptance
    from dflash_deploy.serve.engines.counters import SpecCounters

BROKEN_BELOW = 1.3
BROKEN_FIRST_POSITION = 0.3
WEAK_BELOW = 2.0
# Share of the lowest published acceptance length of a target and draft model below which the setup is wrong.
#
# The tiny pair with another mask token has 0.29 of it (1.75 of 6.14, vLLM 0.32.0) and would pass as weak. Published
# lengths of one pair differ by less than half over their workloads.
FAR_BELOW = 0.4
GUESSED = 0.1  # share of accepted tokens below which a draft position is as bad as a guess


@dataclass(frozen=True)
class AcceptanceGrade:
    """A grade of the acceptance, the measurement in words, and a hint if the grade is not `good`."""

    grade: Literal["good", "weak", "broken", "none"]
    says: str
    hint: str = ""


def grade_acceptance(counted: SpecCounters, known: Sequence[Acceptance] = ()) -> AcceptanceGrade:
    """Grade the counters of a run of real requests; `known` is the published acceptance of target and draft model."""
    length = counted.acceptance_length
    if length is None:
        return AcceptanceGrade(
            "none",
            "the engine reported no draft tokens: speculative decoding is off",
            f"search `dflash-deploy logs` for 'speculative'; {Settings.dflash_drafter} in .env must name the drafter",
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
            "broken", f"{says}; published for these models: at least {expected:.2f}", _OTHER_THAN_TRAINED
        )
    if length < WEAK_BELOW:
        return AcceptanceGrade("weak", says, WEAK_HINT)
    return AcceptanceGrade("good", says)


# What helps if the setup is right and the text is hard to predict.
WEAK_HINT = (
    f"lower {Settings.dflash_num_spec_tokens}: late positions cost time and are seldom accepted; a chat template can "
    f"halve acceptance, and POST /v1/completions uses none: {DOCS}/explanation/acceptance.md"
)

_OTHER_THAN_TRAINED = (
    "acceptance is far below what this drafter can reach: mask_token_id or the target layers in its config.json differ "
    "from its training, or its weights are another revision; check them with `dflash-deploy pull --verify`"
)


def _cause(shares: tuple[float, ...]) -> str:
    """Return why drafts are rejected: at every position, or from the second on, which follow from mask tokens only."""
    if shares and max(shares) < GUESSED:
        return (
            "no draft position is better than a guess: the drafter's weights are not for this target (check them with "
            "`dflash-deploy pull --verify`), or its mask_token_id is not the one it was trained with"
        )
    return (
        "drafts are rejected from the first position: the drafter is for another target, or this engine release has a "
        f"bug; set {Settings.enable_prefix_caching}=off, then check the target on the drafter's model card"
    )
