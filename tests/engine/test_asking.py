"""The real vLLM on a processor is asked for its configuration: what it refuses is named before weights are fetched.

The first question is asked as the program asks it; the others go to the same modules, in forks of one process.
"""

import json
import sys
from collections.abc import Iterator, Mapping

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import DeployError, ExitCode
from dflash_deploy.operations.ask_engine import QUESTION, Heard, ask_engine
from dflash_deploy.operations.plan import Asked
from tests.support.box import Box
from tests.support.cli import HANGS, edit_env
from tests.support.hub import Generated, Hub
from tests.support.vllm_forks import VllmForks

TINY = asset("models", "tiny")
TARGET: dict[str, object] = json.loads((TINY / "target" / "config.json").read_text())
DRAFTER: dict[str, object] = json.loads((TINY / "drafter" / "config.json").read_text())
LARGE = Generated(40_000_000, seed=1)
NAMES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
TOKENIZER = {name: (TINY / "target" / name).read_text() for name in NAMES}


def files(config: dict[str, object], **others: str) -> dict[str, str | Generated]:
    return {"config.json": json.dumps(config), "model.safetensors": LARGE, **others}


FAMILY = """
name: local
title: A model of the tests, shaped like the tiny target
source: tests
shape: {layers: 8, hidden_size: 128, vocabulary: 1024, context: 4096, parameters: 2380000, vision_parameters: 270000,
        full_attention: {layers: 2, heads: 4, kv_heads: 2, head_dim: 64},
        linear_attention: {layers: 6, key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 64, conv_kernel: 4}}
drafter: {repo: o/drafter, bytes: 40000000, source: tests, block_size: 8, layers: 2, hidden_size: 128, kv_heads: 2,
          head_dim: 32}
targets:
  - {name: local, title: A model of the tests, repo: o/target, bytes: 40000000, source: tests, quantisation: bf16,
     served_name: local}
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add("o/target", files(TARGET, **TOKENIZER))
        running.add("o/drafter", files(DRAFTER))
        yield running


@pytest.fixture(scope="module")
def made(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Box, str]:
    box = Box(hub, tmp_path_factory.mktemp("box"), family=FAMILY)
    return box, (box.directory / ".env").read_text()


@pytest.fixture
def box(hub: Hub, made: tuple[Box, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    box, settings = made
    (box.directory / ".env").write_text(settings)
    for name, value in box.environment.items():
        monkeypatch.setenv(name, value)
    hub.forget()
    yield box
    # whatever was asked, no weights came, and no directory of them was made
    assert hub.sent("model.safetensors") == 0
    assert not box.models.exists()


def asked(box: Box) -> Asked:
    # a busy machine may need longer than the command's own limit
    return ask_engine(box.directory, seconds=HANGS)


# The module that asks, without a new interpreter.
IN_A_FORK = """
import os, sys
from dflash_deploy.serve import ask
from dflash_deploy.serve.engines import vllm_question

def become(asked):
    os.environ.update(asked.environment)
    vllm_question.main(list(asked.arguments))

ask._become = become
sys.exit(ask.main())
"""


@pytest.fixture
def forked(forks: VllmForks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of the test are forks."""

    def run_question(command: list[str], environment: Mapping[str, str], *, seconds: float) -> Heard:
        assert command == [sys.executable, "-m", QUESTION]
        done = forks.run(IN_A_FORK, environment=environment)
        return Heard(done.returncode, done.stdout)

    monkeypatch.setattr("dflash_deploy.operations.ask_engine.run_question", run_question)


def error(found: Asked) -> DeployError:
    assert found.failure is not None, found
    assert found.failure.exit_code is ExitCode.PREFLIGHT
    return found.failure


def test_what_it_accepts_and_decides(box: Box) -> None:
    found = asked(box)
    assert (found.verdict, found.failure) == ("accepts", None), found
    decided = found.decided
    assert (decided["attention_backend"], decided["drafter_attention_backend"]) == ("CPU_ATTN", "CPU_ATTN")
    assert (decided["max_model_len"], decided["max_num_seqs"]) == ("2048", "4")
    assert (decided["speculative_method"], decided["draft_tokens"]) == ("dflash", "7")


@pytest.mark.usefixtures("forked")
def test_a_wrong_type_of_cache(box: Box) -> None:
    edit_env(box.directory, KV_CACHE_DTYPE="fp7")
    failure = error(asked(box))
    # the engine's own words, and the fix of the rule
    assert "refuses this" in failure.message
    assert "fp7" in failure.message
    assert failure.hint == "choose one of auto, bfloat16"


@pytest.mark.usefixtures("forked")
def test_too_long_a_context(box: Box) -> None:
    edit_env(box.directory, MAX_MODEL_LEN="100000")
    failure = error(asked(box))
    assert "max_model_len" in failure.message
    assert "4096" in failure.message
    assert "MAX_MODEL_LEN" in failure.hint


@pytest.mark.usefixtures("forked")
def test_a_block_that_is_too_large_and_a_drafter_of_another_target(hub: Hub, box: Box) -> None:
    # vLLM compares neither before its first draft: both are found by rules, which read the config.json that was fetched
    edit_env(box.directory, DFLASH_NUM_SPEC_TOKENS="12")
    hub.publish("o/drafter", files(DRAFTER | {"hidden_size": 256}))
    try:
        found = asked(box)
    finally:
        hub.publish("o/drafter", files(DRAFTER))
    rules = {finding.id: finding.message for finding in found.plan.findings}
    assert error(found).message in rules.values()
    assert "12" in rules["draft-tokens-exceed-block"]
    assert "256" in rules["drafter-of-another-target"]


@pytest.mark.usefixtures("forked")
def test_an_unknown_architecture(hub: Hub, box: Box) -> None:
    unknown = {"architectures": ["NoSuchModel"], "model_type": "no_such_model", "hidden_size": 128}
    hub.publish("o/target", files(unknown))
    try:
        found = asked(box)
    finally:
        hub.publish("o/target", files(TARGET, **TOKENIZER))
    assert "no_such_model" in error(found).message
