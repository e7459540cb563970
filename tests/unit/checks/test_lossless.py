"""What is a difference, and what a tie: the answer without drafts decides."""

import math

import pytest

from dflash_deploy.checks.lossless import TIE, PlainToken, difference

SURE = {"5": -0.001, "6": -9.0}
TORN = {"5": -0.7, "6": -0.7 - TIE / 2, "7": -0.7 - 2 * TIE}


def plain(*tokens: str, likely: dict[str, float]) -> list[PlainToken]:
    return [PlainToken(token, {**likely, token: max(likely.values())}) for token in tokens]


@pytest.mark.parametrize(
    ("here", "there", "found"),
    [
        (["4", "5"], plain("4", "5", likely=SURE), ""),
        (["4", "6"], plain("4", "5", likely=SURE), "token 2 is `6` here, `5` without drafts (9.0 behind)"),
        (["4", "6"], plain("4", "5", likely=TORN), ""),
        (["4", "7"], plain("4", "5", likely=TORN), "token 2 is `7` here, `5` without drafts (2.0 behind)"),
        # not listed: at least as far behind as the last one
        (["4", "2"], plain("4", "5", likely=SURE), "token 2 is `2` here, `5` without drafts (9.0 behind)"),
        (["4"], plain("4", "5", likely=SURE), "the answer ends after token 1, without drafts after token 2"),
        # after a tie the answers go different ways
        (["6", "2", "2"], plain("5", "6", likely=TORN), ""),
    ],
)
def test_the_first_difference_counts(here: list[str], there: list[PlainToken], found: str) -> None:
    assert difference(here, there) == found


def test_a_tie_is_more_than_the_steps_of_a_bf16_logit() -> None:
    # 8 significant bits: a number in [2^e, 2^(e+1)) has steps of 2^(e-7); logits reach 32, and two are compared
    step = 2.0 ** (math.floor(math.log2(31.9)) - 7)
    assert step == 0.125
    assert 4 * step < TIE
