"""The steps of a proof on a GPU: the released vLLM accepts their arguments on an H100, and chooses what they prove."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.decisions.questions import Decision, Question, decisions
from tests.support.machines import MACHINES
from tools.proof import shapes
from tools.proof.decide import Step, shape_command, steps, unknown_options, without_gateway

CATALOG = load_catalog()
ON_A_GPU = {step.name: step for step in steps() if step.cuda}


def question(step: Step) -> Question:
    """What vLLM is asked about a step: the arguments that it would start with, and its models."""
    model = step.model or "tiny"
    choice = Choice(profile="h100", model=model, runtime="native", edited=dict(step.settings))
    plan = plan_deployment(MACHINES["h100"], choice, CATALOG)
    assert [error.id for error in plan.errors] == (["weights-do-not-fit"] if step.fault == "settings" else [])
    planned = tuple(engine_command(plan))
    with TemporaryDirectory() as place:
        target, drafter = shapes.write(Path(place), model)
        configs = [json.loads(read_text(folder / "config.json")) for folder in (target, drafter)]
    if step.kind == "shape":
        # relative: the process that answers has them in its working directory
        words = shape_command(planned, Path("target"), Path("drafter"), drafts=step.drafts, port=1)
    else:
        words = without_gateway(planned, 1)
        words = tuple({str(target): "target"}.get(word, word.replace(str(drafter), "drafter")) for word in words)
        words += ("--enable-sleep-mode",) if step.kind == "sleep" else ()
    assert unknown_options(words, CATALOG.options[plan.engine.name]) == []
    asked = Question.of(plan)
    return replace(asked, target=configs[0], drafter=configs[1], arguments=list(words), sized=False)


@cache
def answers() -> Mapping[str, Decision]:
    """vLLM's decision about each step."""
    return dict(zip(ON_A_GPU, decisions([question(step) for step in ON_A_GPU.values()]), strict=True))


@pytest.mark.parametrize("name", ON_A_GPU)
def test_vllm_accepts_the_arguments_of_each_step(name: str) -> None:
    step, decision = ON_A_GPU[name], answers()[name]
    if step.kind == "sleep":
        # the last thing that vLLM asks: its compiled allocator, which is empty here
        assert decision.refused == "cumem allocator is not supported on current platform."
        return
    assert (decision.refused, decision.where) == ("", "")
    wanted = {
        "attention_backend": step.settings.get("ATTENTION_BACKEND", "FLASH_ATTN"),
        "drafter_attention_backend": step.settings.get("DFLASH_ATTENTION_BACKEND", "FLASH_ATTN"),
        "kv_cache_dtype": step.settings.get("KV_CACHE_DTYPE", "auto"),
        "speculative_method": "dflash",
    }
    if not step.drafts:
        wanted = {"attention_backend": wanted["attention_backend"], "kv_cache_dtype": wanted["kv_cache_dtype"]}
        assert "speculative_method" not in decision.decided
    assert {key: decision.decided[key] for key in wanted} == wanted
