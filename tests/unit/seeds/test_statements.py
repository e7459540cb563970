"""Each statement of the four documents has a cover that exists, or a reason (docs/reference/seeds.md)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.run import CHECKS
from dflash_deploy.rules.table import RULES
from dflash_deploy.serve.settings import Settings
from tests.support.documents import ROOT, Link, parse, problem_of, text_of
from tests.support.rows import each_of
from tests.unit.seeds.command import parse as parsed
from tests.unit.seeds.test_seeds import SEEDS
from tools.reference.rules import identifier
from tools.reference.seeds import Cover, documents

DOCUMENTS = documents()
STATEMENTS = [one for _, entries in DOCUMENTS.values() for one in entries]
CATALOG = load_catalog()
IDENTIFIERS = set(map(identifier, RULES))
FAILURES = {one.id for one in CATALOG.failures}


def of_profile(cover: Cover) -> bool:
    """A profile, and after # a setting that it or one of its engines has."""
    name, _, setting = cover.name.partition("#")
    profile = CATALOG.profiles[name]
    having = set(profile.settings).union(*(choice.settings for choice in profile.engines))
    return not setting or setting in having


def of_launch(cover: Cover) -> bool:
    """A command of commands.yaml, and after # a setting of it."""
    name, _, setting = cover.name.partition("#")
    seed = next(seed for seed in SEEDS if seed.id == name)
    return not setting or setting in {*seed.differences, *parsed(seed.text).settings}


def of_speed(cover: Cover) -> bool:
    """A published speed with these figures: PROFILE/MODEL/WORKLOAD/CONCURRENCY/DRAFT TOKENS = NAME FIGURE, …"""
    profile, pair, workload, concurrency, drafts = cover.name.split("/")
    wanted = (profile, pair, workload, int(concurrency), int(drafts))
    rows = [one for one in CATALOG.speeds
            if (one.profile, one.pair, one.workload, one.concurrency, one.draft_tokens) == wanted]  # fmt: skip
    figures = [figure.split(" ") for figure in cover.contains.split(", ")]
    return any(all(getattr(row, name) == float(value) for name, value in figures) for row in rows)


def of_acceptance(cover: Cover) -> bool:
    """A length of a family: FAMILY/WORKLOAD/DRAFT TOKENS/LENGTH."""
    family, workload, drafts, length = cover.name.split("/")
    known = next(pair.family for pair in CATALOG.pairs.values() if pair.family.name == family).acceptance
    return any((one.workload, one.draft_tokens, one.length) == (workload, int(drafts), float(length)) for one in known)


def of_page(cover: Cover) -> bool:
    """A page, after # a heading of it, after = words of that section or page."""
    path = cover.name.partition("#")[0]
    assert problem_of(Link(ROOT / "README.md", 1, cover.name)) == ""
    text = text_of(ROOT / path)
    return " ".join(cover.contains.split()) in " ".join(text.split())


def of_command(cover: Cover) -> bool:
    """A command line that the program accepts; raises what its parser says."""
    parse(tuple(shlex.split(cover.name)))
    return True


def of_file(cover: Cover) -> bool:
    """A file of the repository, and after = what it contains."""
    return cover.contains in (ROOT / cover.name).read_text(encoding="utf-8")


# How a cover of each kind is found.
EXISTS: Mapping[str, Callable[[Cover], bool]] = {
    "profile": of_profile,
    "model": lambda cover: cover.name in CATALOG.pairs,
    "rule": lambda cover: cover.name in IDENTIFIERS,
    "check": lambda cover: cover.name in CHECKS,
    "failure": lambda cover: cover.name in FAILURES,
    "setting": lambda cover: hasattr(Settings, cover.name.lower()),
    "launch": of_launch,
    "speed": of_speed,
    "acceptance": of_acceptance,
    "page": of_page,
    "command": of_command,
    "file": of_file,
    "test": of_file,
}


@each_of({str(cover): cover for one in STATEMENTS for cover in one.covers}.values())
def test_what_covers_a_statement_exists(cover: Cover) -> None:
    assert EXISTS[cover.kind](cover)


def test_each_statement_has_a_cover_or_a_reason() -> None:
    assert not [str(one) for one in STATEMENTS if not one.covers and len(one.why_not.split()) < 5]


def test_no_statement_is_there_twice() -> None:
    assert len({str(one) for one in STATEMENTS}) == len(STATEMENTS)


def test_all_four_documents_and_every_launch_command_of_them_are_there() -> None:
    assert list(DOCUMENTS) == ["S0", "S1", "S2", "S3"]
    covered = {cover.name.partition("#")[0] for one in STATEMENTS for cover in one.covers if cover.kind == "launch"}
    assert covered == {seed.id for seed in SEEDS}


@pytest.mark.parametrize(
    "cover",
    [
        Cover("speed", "b200/qwen3.5-27b-bf16/Math500/1/15", "plain 85"),
        Cover("speed", "b200/qwen3.5-27b-bf16/Math500/2/15", "plain 84"),
        Cover("rule", "no-such-rule"),
        Cover("check", "no-such-check"),
        Cover("failure", "no-such-failure"),
        Cover("setting", "NO_SUCH_SETTING"),
        Cover("profile", "dgx-spark#NO_SUCH_SETTING"),
        Cover("launch", "S0-sglang#--no-such-argument"),
        Cover("page", "docs/explanation/acceptance.md", "a sentence that the page does not have"),
    ],
    ids=str,
)
def test_a_cover_that_is_lost_is_found(cover: Cover) -> None:
    assert not EXISTS[cover.kind](cover)


def test_a_page_without_the_heading_is_found() -> None:
    with pytest.raises(AssertionError):
        of_page(Cover("page", "docs/explanation/acceptance.md#no-such-heading"))
