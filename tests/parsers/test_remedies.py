"""What a known failure says to set or to add is a setting or an argument of the engine that it is said to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from dflash_deploy.catalog.failures import Failure
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.settings import passed_on, setting_names
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.engines import ENGINES
from tests.support.machines import MACHINES
from tests.support.parsers import Engine, Rejections


@dataclass(frozen=True)
class Asked:
    """A parser, the words before its arguments, and a deployment of the engine."""

    parser: Engine
    base: tuple[str, ...]
    profile: str
    release: str


ASKED: Mapping[str, Asked] = {
    "vllm": Asked("vllm-0.33", ("serve", "/models/target"), "h100", "vllm-0.33"),
    "sglang": Asked("sglang-0.5.23", ("--model-path", "/models/target"), "h100", "sglang-0.5.23"),
    "llamacpp": Asked("llamacpp-b11434", ("-m", "/models/target.gguf"), "rtx-3090", "llamacpp-b11434"),
}
_ADDED = re.compile(r"\b(?:add|with|try|set another|or) `?(?P<argument>--[a-z][\w-]+(?: [\w./]+(?=`))?)")
_SET = re.compile(r"\b(?P<name>[A-Z][A-Z0-9_]{3,})=(?P<value>[\w./-]*)")
_NUMBERS = {"half": "2", "enough": "16384", "": "4096"}  # what `up --fix` computes, and what a message carries


def failures_of(engine: str) -> Iterator[Failure]:
    return (failure for failure in load_catalog().failures if not failure.engines or engine in failure.engines)


def added(engine: str) -> Iterator[tuple[str, list[str]]]:
    """The id of each failure of an engine, and an argument that it says to add."""
    for failure in failures_of(engine):
        for found in _ADDED.finditer(failure.remedy(engine)):
            yield failure.id, shlex.split(found["argument"])


def settings_of(engine: str) -> Iterator[tuple[str, str, str]]:
    """The id of each failure of an engine, and a setting with the value that its remedy or its fix gives it."""
    for failure in failures_of(engine):
        for found in _SET.finditer(failure.remedy(engine)):
            yield failure.id, found["name"], found["value"] or _NUMBERS[""]
        for name, value in failure.fix.items():
            if name in setting_names(engine):
                yield failure.id, name, _NUMBERS[""] if "{" in value else _NUMBERS.get(value, value) if value else ""


def command_with(engine: str, name: str, value: str) -> list[str]:
    """The arguments of a deployment with this setting."""
    asked = ASKED[engine]
    choice = Choice(profile=asked.profile, engine=asked.release, runtime="compose", edited={name: value})
    plan = plan_deployment(MACHINES[asked.profile], choice, load_catalog())
    assert plan.values[name] == value
    return engine_command(plan)[len(ENGINES[engine].program) :]


@pytest.mark.parametrize("engine", ASKED)
def test_what_is_set_or_added_is_accepted_by_the_parser_of_the_engine(engine: str, rejections: Rejections) -> None:
    asked, further = ASKED[engine], {"--master-port": ["29501"], "--dist-init-addr": ["10.0.0.1:29501"]}
    # many failures have the same remedy: each is asked once
    adding = {shlex.join(words): words for _, words in added(engine)}
    setting = {f"{name}={value}": (name, value) for _, name, value in settings_of(engine)}
    lists = {text: [*asked.base, *words, *further.get(words[0], [])] for text, words in adding.items()}
    lists |= {text: command_with(engine, name, value) for text, (name, value) in setting.items()}
    answers = rejections(asked.parser, list(lists.values()))
    assert {remedy: answer for remedy, answer in zip(lists, answers, strict=True) if answer} == {}


@pytest.mark.parametrize("engine", [*ASKED, "llamacpp-buun"])
def test_what_is_set_is_a_setting_of_the_engine(engine: str) -> None:
    known = set(setting_names(engine))
    assert [
        (failure, name) for failure, name, _ in settings_of(engine) if name not in known and not passed_on(name)
    ] == []


def test_such_remedies_are_found() -> None:
    assert ("sglang-radix-with-drafter", ["--mamba-radix-cache-strategy", "extra_buffer"]) in added("sglang")
    assert ("custom-all-reduce-failed", ["--disable-custom-all-reduce"]) in added("vllm")
    assert ("flash-attention-2-on-gb10", "ATTENTION_BACKEND", "TRITON_ATTN") in settings_of("vllm")
    assert ("sequences-beyond-state-cache", "MAX_NUM_SEQS", "4096") in settings_of("vllm")
