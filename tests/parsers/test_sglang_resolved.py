"""On each profile's GPU SGLang's own checks leave our arguments as they are: nothing is refused or replaced."""

import pytest

from dflash_deploy.plan import Plan, engine_command
from dflash_deploy.serve.engines import ENGINES
from tests.parsers.combinations import planned
from tests.support.parsers import resolved_by_sglang

Resolved = dict[str, object]

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
"""Options of the plans and the values that SGLang makes of them."""


def words(plan: Plan) -> list[str]:
    """The compute capability, the number of GPUs and the arguments."""
    hardware = plan.profile.match
    arguments = engine_command(plan)[len(ENGINES["sglang"].program) :]
    return [str(hardware.compute_capability), str(hardware.gpus), *arguments]


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """One plan of SGLang for each profile."""
    chosen: dict[str, Plan] = {}
    for plan in planned():
        if plan.engine.engine == "sglang":
            chosen.setdefault(plan.profile.name, plan)
    return list(chosen.values())


@pytest.fixture(scope="module")
def resolved(plans: list[Plan]) -> list[Resolved]:
    """What SGLang makes of them; at the end, of some that it changes or refuses."""
    first = words(plans[0])
    unsafe = [*first, "--quantization", "fp8"]
    safe = [*unsafe, "--speculative-draft-model-quantization", "unquant"]
    wrong = [*first, "--pp-size", "2"]
    (blackwell,) = (words(plan) for plan in plans if plan.profile.name == "b200")
    # the last one counts
    replaced = [*blackwell, "--speculative-draft-attention-backend", "trtllm_mha"]
    return resolved_by_sglang([*map(words, plans), unsafe, safe, wrong, replaced])


def test_what_is_set_is_what_runs(plans: list[Plan], resolved: list[Resolved]) -> None:
    assert len(plans) >= 8
    changed = {}
    for plan, values in zip(plans, resolved, strict=False):
        arguments = words(plan)
        wanted = {
            name: arguments[arguments.index(option) + 1] for option, name in OPTIONS.items() if option in arguments
        }
        got = {name: str(values.get(name)) for name in wanted}
        if values["refused"] or got != wanted:
            changed[plan.profile.name] = (values["refused"], {k: (v, got[k]) for k, v in wanted.items() if got[k] != v})
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
