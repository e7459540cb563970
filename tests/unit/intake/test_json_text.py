"""JSON from outside: what Python's own parser reads the same is read, and nothing costs more than its limit."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.intake.parse import Invalid, parse_json, parse_object

NUMBERS = st.integers(-(2**64) + 1, 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(VALUES, st.booleans())
def test_what_json_writes_is_read_back(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(st.binary(max_size=64) | st.text(max_size=64))
def test_any_text_is_a_value_or_invalid(text: bytes | str) -> None:
    try:
        value = parse_json(text)
    except Invalid:
        return
    assert json.loads(text) == value


@given(
    st.text(st.sampled_from('[]{},:"\\0123456789eE+-.atrufalsn NIy'), max_size=40),
)
def test_nothing_infinite_and_no_giant_integer_comes_through(text: str) -> None:
    try:
        left = [parse_json(text)]
    except Invalid:
        return
    while left:
        node = left.pop()
        left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        assert not isinstance(node, float) or math.isfinite(node)
        assert not isinstance(node, int) or abs(node) < 2**64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not valid JSON"),
        ("NaN", "is not valid JSON"),
        ('{"a": -Infinity}', "is not valid JSON"),
        ("[1e400]", "number that is too large"),
        (f"[{2**64}]", "does not fit into 64 bits"),
        ("9" * 100_000, "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON: recursion limit"),
        ('{"a":' * 100_000, "is not valid JSON: recursion limit"),
        ("[" * 300 + "]" * 300, "is not valid JSON: recursion limit"),
        (b"\xff\xfe{\x00}\x00", "is not valid JSON"),
        ('"\\ud800"', "is not valid JSON"),
        ("{} {}", "is not valid JSON: trailing"),
        ("[" + "[]," * 500_000 + "0]", "has more than 1000000 values"),
        (" " * (16 * 2**20 + 1), "is too large"),
    ],
)
def test_what_is_refused_and_why(text: str | bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_json(text)


def test_brackets_in_a_string_are_no_levels() -> None:
    assert parse_json(json.dumps(["[" * 1000 + '"' + "]" * 1000])) == ["[" * 1000 + '"' + "]" * 1000]


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}


def test_long_digests_are_no_numbers() -> None:
    assert parse_json('["' + "1" * 64 + '", "3e999"]') == ["1" * 64, "3e999"]


@pytest.mark.parametrize("text", ["null", "[]", "1", '"{}"', "true"])
def test_an_object_is_an_object(text: str) -> None:
    with pytest.raises(Invalid, match="is not a JSON object"):
        parse_object(text)
