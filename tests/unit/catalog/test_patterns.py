"""A pattern of a fingerprint is searched in every line of a log: its time must not grow with a power of the line."""

import time

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.patterns import slow_because
from dflash_deploy.startup.log_summary import LONGEST_LINE


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(?:a|a)*b", r"(a)\1+", "a*a*a*b", r"\s+\s+x", "a+aa+aa+c", "[a-z]+[a-z]+$", r"\w+\d+x"),
        *(".*a.*b", r"x.*a\d+", r"\s*\d*\s*x", ".+.+", "[^|]*[^x]*x", "a+a?a+b", r"\S{1,99}\w{1,99}x"),
        *("a+b+c+d+e+f+", r"(?P<a>\w+)(?P<b>\w+)x"),
    ],
)
def test_a_pattern_that_tries_many_ways_is_refused(pattern: str) -> None:
    assert slow_because(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "error",
        r"\d+ of \d+",
        r"\s+(?P<n>\d+)",
        r"x.*derived \d+",
        r"[\d.]+/[\d.]+",
        r"\w+\.\w+",
        r"a\+a\+",
        "colou?r",
    ],
)
def test_a_pattern_with_an_end_to_each_repeat_is_accepted(pattern: str) -> None:
    assert slow_because(pattern) == ""


def test_the_packaged_patterns_are_accepted_and_fast_on_lines_made_of_their_own_characters() -> None:
    for failure in load_catalog().failures:
        assert slow_because(failure.pattern) == ""
        lines = [char * LONGEST_LINE for char in sorted({*failure.pattern, *" 0aé"})]
        began = time.process_time()
        for line in lines:
            failure.compiled.search(line)
        assert time.process_time() - began < 0.1 * len(lines), failure.id
