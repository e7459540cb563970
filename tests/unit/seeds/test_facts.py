"""Each entry of the catalog that was read again has a correction that exists, or a reason (docs/reference/facts.md)."""

import re

from tests.support.rows import each_of
from tests.unit.seeds.test_statements import EXISTS
from tools.reference.facts import facts
from tools.reference.seeds import Cover

FACTS = facts()
COVERS = {str(cover): cover for one in FACTS for cover in one.covers}


def test_all_twenty_five_are_there_in_order() -> None:
    assert [one.number for one in FACTS] == list(range(1, 26))


@each_of(COVERS.values())
def test_what_corrects_an_entry_exists(cover: Cover) -> None:
    assert EXISTS[cover.kind](cover)


def test_each_entry_has_a_correction_and_what_is_left_has_a_reason() -> None:
    assert not [one.number for one in FACTS if not one.covers]
    assert not [one.number for one in FACTS if one.why_not and len(one.why_not.split()) < 5]


def test_a_commit_is_named_by_its_hash() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", commit) for one in FACTS for commit in one.commits)
