"""On each profile's GPU and for each family SGLang's own checks leave our arguments as they are."""

import json
import shutil
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import ENGINES
from tests.parsers.combinations import planned
from tests.support.decisions.configs import Config, configs
from tests.support.parsers import resolved_by_sglang

Resolved = dict[str, object]

# Options of the plans and the values that SGLang makes of them.
OPTIONS = {
    "--attention-backend": "attention_backend",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--max-running-requests": "max_running_requests",
    "--chunked-prefill-size": "chunked_prefill_size",
    "--mem-fraction-static": "mem_fraction_static",
    "--speculative-algorithm": "speculative_algorithm",
    "--speculative-num-draft-tokens": "speculative_num_draft_tokens",
    "--speculative-draft-attention-backend": "speculative_draft_attention_backend",
    "--tp-size": "tp_size",
}


def words(plan: Plan, models: Path) -> list[str]:
    """The compute capability, the number of GPUs, the directory of the models and the arguments."""
    hardware = plan.profile.match
    arguments = engine_command(plan)[len(ENGINES["sglang"].program) :]
    return [str(hardware.compute_capability), str(hardware.gpus), str(models), *arguments]


def target_and_drafter(plan: Plan) -> tuple[Config, Config]:
    """config.json of both models, with the keys that SGLang reads without a default and no check depends on."""
    target, drafter = configs(plan)
    if plan.pair.family.name == "muse-glimmer-30b":
        layers = plan.pair.shape.layers
        text = {"hidden_activation": "silu", "final_logit_softcapping": 20.0, "qk_scale_factor": 4.0}
        target["text_config"] |= text | {"layer_rope_theta": [10000.0] * layers}
        del target["vision_config"]
    return target, drafter


def laid_out(plan: Plan, models: Path) -> Path:
    """config.json of target and drafter of a plan, with the tiny target's tokenizer, below `models`."""
    for role, config in zip(("target", "drafter"), target_and_drafter(plan), strict=True):
        (models / role).mkdir(parents=True)
        (models / role / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(asset("models/tiny/target") / name, models / "target" / name)
    return models


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """Plans of SGLang: each profile, and each family with each backend that is planned for it."""
    chosen: dict[object, Plan] = {}
    for plan in planned():
        if plan.engine.engine == "sglang":
            chosen.setdefault(plan.profile.name, plan)
            chosen.setdefault((plan.pair.family.name, plan.settings.attention_backend), plan)
    return list({(plan.profile.name, plan.pair.name): plan for plan in chosen.values()}.values())


@pytest.fixture(scope="module")
def places(plans: list[Plan], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directory of the models of each plan."""
    root = tmp_path_factory.mktemp("models")
    return [laid_out(plan, root / str(number)) for number, plan in enumerate(plans)]


@pytest.fixture(scope="module")
def resolved(plans: list[Plan], places: list[Path]) -> list[Resolved]:
    """What SGLang makes of them; at the end, of some that it changes or refuses."""
    asked = [words(plan, place) for plan, place in zip(plans, places, strict=True)]
    unsafe = [*asked[0], "--quantization", "fp8"]
    safe = [*unsafe, "--speculative-draft-model-quantization", "unquant"]
    wrong = [*asked[0], "--pp-size", "2"]
    blackwell = next(one for one, plan in zip(asked, plans, strict=True) if plan.profile.name == "b200")
    # the last one counts
    replaced = [*blackwell, "--speculative-draft-attention-backend", "trtllm_mha"]
    gemma = next(
        one
        for one, plan in zip(asked, plans, strict=True)
        if plan.profile.name == "h100" and plan.pair.family.name.startswith("gemma-4")
    )
    return resolved_by_sglang([*asked, [*gemma, "--attention-backend", "fa3"], unsafe, safe, wrong, replaced])


def test_what_is_set_is_what_runs(plans: list[Plan], resolved: list[Resolved]) -> None:
    assert {plan.pair.family.name for plan in plans} == {
        plan.pair.family.name for plan in planned() if plan.engine.engine == "sglang"
    }
    changed = {}
    for plan, values in zip(plans, resolved, strict=False):
        arguments = engine_command(plan)
        wanted = {
            name: arguments[arguments.index(option) + 1] for option, name in OPTIONS.items() if option in arguments
        }
        got = {name: str(values.get(name)) for name in wanted}
        if values["refused"] or got != wanted:
            changed[plan.profile.name, plan.pair.name] = (
                values["refused"],
                {k: (v, got[k]) for k, v in wanted.items() if got[k] != v},
            )
        assert "speculative_draft_attention_backend" in wanted
    assert changed == {}


def test_a_drafter_inherits_the_quantization_unless_it_is_told_not_to(resolved: list[Resolved]) -> None:
    inherited, own, refused, _ = resolved[-4:]
    assert inherited["speculative_draft_model_quantization"] == "fp8"
    assert own["speculative_draft_model_quantization"] is None
    assert "DFLASH speculative decoding only supports pp_size == 1" in str(refused["refused"])


def test_a_backend_that_sglang_replaces_is_seen(resolved: list[Resolved]) -> None:
    assert resolved[-1]["refused"] is None
    assert resolved[-1]["speculative_draft_attention_backend"] == "fa4"


def test_a_backend_that_gemma_refuses_is_replaced_in_the_plan(plans: list[Plan], resolved: list[Resolved]) -> None:
    assert "Gemma4 only supports trtllm_mha, triton, fa4" in str(resolved[len(plans)]["refused"])
    used = {
        plan.settings.attention_backend
        for plan in plans
        if plan.pair.family.name.startswith("gemma-4") and plan.profile.match.compute_capability == "9.0"
    }
    assert used == {"triton"}
