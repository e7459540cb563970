"""Acceptance as people saw it, and the grade it gets."""

import pytest

from dflash_deploy.catalog.models import Acceptance
from dflash_deploy.checks.acceptance import grade_acceptance
from dflash_deploy.serve.engines.counters import SpecCounters

DRAFTS = 1000


def counted(*shares: float) -> SpecCounters:
    by_position = tuple(int(share * DRAFTS) for share in shares)
    return SpecCounters(DRAFTS, DRAFTS * len(shares), sum(by_position), by_position)


@pytest.mark.parametrize(
    ("counters", "grade"),
    [
        # HumanEval on vLLM with Qwen3.5-27B, the drafter card's discussion: 8.09
        (
            counted(
                0.9254,
                0.8247,
                0.7299,
                0.6477,
                0.5766,
                0.5152,
                0.4624,
                0.4187,
                0.3778,
                0.3420,
                0.3107,
                0.2810,
                0.2533,
                0.2250,
                0.1959,
            ),
            "good",
        ),
        # "12 to 18 % acceptance, near zero beyond position 8"
        (counted(0.45, 0.25, 0.12, 0.06, 0.03, 0.01), "weak"),
        # lm_head not shared: nothing is accepted (vllm-project/vllm#46435)
        (counted(0.02, 0.0, 0.0), "broken"),
        (SpecCounters(), "none"),
    ],
)
def test_grades(counters: SpecCounters, grade: str) -> None:
    verdict = grade_acceptance(counters)
    assert verdict.grade == grade
    assert bool(verdict.hint) == (grade != "good")


def test_far_below_what_the_pair_is_known_for_is_broken_and_not_weak() -> None:
    """The tiny pair on the real vLLM with another mask token: 1.75, and 48 % of first draft tokens."""
    shares = counted(0.48, 0.15, 0.06, 0.04, 0.03, 0.02, 0.02)
    assert grade_acceptance(shares).grade == "weak"
    known = [Acceptance(workload="chat", draft_tokens=7, length=6.14, source="")]
    verdict = grade_acceptance(shares, known)
    assert verdict.grade == "broken"
    assert "mask_token_id" in verdict.hint
    # with fewer draft tokens less is to be expected
    assert (
        grade_acceptance(counted(0.5, 0.2), [Acceptance(workload="", draft_tokens=15, length=4, source="")]).grade
        != "broken"
    )


def test_a_few_lucky_drafts_do_not_hide_a_dead_first_position() -> None:
    assert grade_acceptance(counted(0.25, 0.25, 0.25, 0.25, 0.25)).grade == "broken"
