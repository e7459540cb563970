"""Each entry of the catalog that was read again has a correction that exists, or a reason (docs/reference/facts.md)."""

import re

import pytest

from tests.unit.seeds.test_statements import EXISTS
from tools.reference.facts import facts

COVERS = {str(cover): cover for one in facts() for cover in one.covers}


def test_all_twenty_five_are_there_in_order() -> None:
    assert [one.number for one in facts()] == list(range(1, 26))


@pytest.mark.parametrize("name", sorted(COVERS))
def test_what_corrects_an_entry_exists(name: str) -> None:
    assert EXISTS[COVERS[name].kind](COVERS[name])


def test_each_entry_has_a_correction_and_what_is_left_has_a_reason() -> None:
    assert not [one.number for one in facts() if not one.covers]
    assert not [one.number for one in facts() if one.why_not and len(one.why_not.split()) < 5]


def test_a_commit_is_named_by_its_hash() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", commit) for one in facts() for commit in one.commits)
