"""YAML from outside: bounded in levels, values and expanded aliases; dates are text, numbers finite."""

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.intake.parse import Invalid, parse_packaged_yaml, parse_yaml

TEXTS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)

LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))])
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10))]
)


@given(VALUES)
def test_what_yaml_writes_is_read_back(value: object) -> None:
    text = yaml.safe_dump(value)
    assert parse_yaml(text) == value
    assert parse_packaged_yaml(text) == value


@given(st.text(max_size=64) | st.text(st.sampled_from("&*a<: -[]{}'\"!?|>\n01_.e+~%@`#"), max_size=40))
def test_any_text_is_a_value_or_invalid(text: str) -> None:
    with contextlib.suppress(Invalid):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested deeper than 50 levels"),
        ("- " * 60 + "x", "nested deeper than 50 levels"),
        ("{a: " * 100_000, "nested deeper than 50 levels"),
        (LAUGHS, r"has more than 100000 values \(line 6\)"),
        (MERGES, "has more than 100000 values"),
        ("- x\n" * 100_001, "has more than 100000 values"),
        ("&a [*a]", "alias inside its own value"),
        ("[*nobody]", "is not valid YAML: found undefined alias"),
        ("9" * 5000, "does not fit into 64 bits"),
        (f"a: {2**64}", r"does not fit into 64 bits \(line 1\)"),
        ("0x" + "f" * 5000, "does not fit into 64 bits"),
        ("a: .inf", "not finite"),
        ("a: .nan", "not finite"),
        ("a: 1.0e+400", "not finite"),
        ("a: " + "1" * 5000 + ".5", "not finite"),
        ("!!binary aGVsbG8=", "has a tag"),
        ("!!python/object/apply:os.system [id]", "has a tag"),
        ("a: !!set {x}", "has a tag"),
        ("? [a]\n: b", "is not valid YAML"),
        ("? {a: b}\n: c", "is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
        ("a: \x07", "is not valid YAML"),
        ("=", "is not valid YAML"),
        ("a: [", "is not valid YAML"),
        ("#" * (2**20 + 1), "is too large"),
    ],
)
def test_what_is_refused_and_why(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_yaml(text)


def test_a_date_is_text() -> None:
    assert parse_yaml("a: 2026-11-22\nb: 2026-11-22 10:00:00") == {"a": "2026-11-22", "b": "2026-11-22 10:00:00"}


def test_an_alias_and_a_merge_of_reasonable_size_work() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_a_surrogate_is_refused() -> None:
    with pytest.raises(Invalid):
        parse_yaml("a: \ud800")
