"""A pattern of a fingerprint is searched in every line of a log: its time must not grow with a power of the line."""

import time

import pytest

from dflash_deploy.catalog.failures import slow_because
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.lines import LONGEST_LINE


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(?:a|a)*b", r"(a)\1+", "a*a*a*b", r"\s+\s+x", "a+aa+aa+c", "[a-z]+[a-z]+$", r"\w+\d+x"),
        *(".*a.*b", r"x.*a\d+", r"\s*\d*\s*x", ".+.+", "[^|]*[^x]*x", "a+a?a+b", r"\S{1,99}\w{1,99}x"),
        *("a+b+c+d+e+f+", r"(?P<a>\w+)(?P<b>\w+)x"),
        # what may be left out ends no repeat
        *("a+(b|)a+(b|)a+x", "a+(b)?a+x", "a+b?a+x", "a+(?:b+|c)b+x", "(?=a+)a+b", r"\S*\b\S*\bx"),
        # an escaped backslash before the end of a group
        *(r"(a+|\\)*b", r"(a*\\)+b"),
        # alternatives without a repeat
        *("(a|a)" * 30 + "x", "a?" * 30 + "a" * 30),
        # the same character, written in another way
        *("(?i)a+A+x", "(?i:a+)A+x", r"\x61+a+x", r"\101+A+x", "[à-ä]+[á-å]+x", r"[\xe0-\xe4]+[\xe1-\xe5]+x"),
        # a repeat that matches the text that ends `.*`
        *(r"x.*abc\d+x[a-z0-9]+y", ".*(ab|cd)e[cde]+x"),
        *("(?>a+)b", "(?x) a+", "(a)(?(1)b|c)", "(" * 30 + "a" + ")" * 30),
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
        "a[ab]+c",
        "error.*failed",
        r".*(?:reason|cause): \d+",
        "(?i)error: (?P<x>.{1,80}) failed",
        r"\x1b\[[0-9;]*m",
        r"(?P<a>\d+)? of (?:all|some|no)? \w+",
        r"^\s*x$",
        r"\bfailed\b",
        "x{",
        "(?!a)b+c",
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
