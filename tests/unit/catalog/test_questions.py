"""Questions whose answers `test` knows by heart are such that a right model gives that answer."""

import re

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import load_prompts
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Counting, Questions


def test_the_tiny_models_were_trained_on_what_they_are_asked_by_heart() -> None:
    corpus = {prompt.messages[-1].content: prompt.answer for prompt in load_prompts(asset("models/tiny/prompts.jsonl"))}
    (tiny,) = {
        id(pair.family): pair.family for pair in load_catalog().pairs.values() if pair.family.name == "tiny"
    }.values()
    for one in tiny.by_heart:
        assert [int(number) for number in re.findall(r"\d+", corpus[one.ask])] == one.numbers


@pytest.mark.parametrize("one", Questions().by_heart, ids=lambda one: one.ask)
def test_a_question_names_the_first_and_the_last_number(one: Counting) -> None:
    assert re.findall(r"\d+", one.ask) == [str(one.numbers[0]), str(one.numbers[-1])]
    assert len(set(one.numbers)) == len(one.numbers) >= 30
