"""Profiles of several data-centre GPUs, of quantized drafters, and of targets that only some GPUs or engines serve."""

from dataclasses import replace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import NotPossible
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.plan.choose import choose_profile
from dflash_deploy.plan.compatible import backends_on
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import A100, H100, MACHINES, RTX_4090, RTX_5090, machine

CATALOG = load_catalog()
NEW = ("rtx-4090", "rtx-5090-x2", "a100", "h100-x2", "h100-x4", "h100-x8", "h200-x8", "b200-x8")


def planned(profile: str, *, model: str | None = None, engine: str | None = None) -> Plan:
    choice = Choice(profile=profile, model=model, engine=engine, runtime="compose")
    return plan_deployment(MACHINES[profile], choice, CATALOG)


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        ([RTX_4090], "rtx-4090"),
        ([RTX_5090] * 2, "rtx-5090-x2"),
        ([A100] * 8, "a100-x8"),
        ([A100] * 7, "a100-x4"),
        ([H100], "h100"),
        ([H100] * 3, "h100-x2"),
        ([H100] * 7, "h100-x4"),
        ([H100] * 8, "h100-x8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_profile_that_uses_most_of_the_machine_is_chosen(gpus: list[Gpu], name: str) -> None:
    assert choose_profile(machine(*gpus), CATALOG).name == name


@pytest.mark.parametrize("name", NEW)
def test_each_engine_of_a_profile_has_a_plan_that_fits(name: str) -> None:
    for choice in CATALOG.profiles[name].engines:
        plan = planned(name, engine=choice.release)
        assert plan.engine.name == choice.release
        assert plan.errors == ()
        assert plan.settings.tensor_parallel_size in {None, CATALOG.profiles[name].gpus}
        memory = plan.memory
        assert memory is not None
        # SGLang's share has no room for activations; vLLM's has
        assert memory.target_bytes + memory.drafter_bytes + memory.cache_bytes <= memory.budget_bytes * 1.001
        assert memory.target_bytes >= plan.pair.target.bytes / CATALOG.profiles[name].gpus * 0.9


def test_fp8_blocks_of_minimax_are_not_divided_among_eight_gpus() -> None:
    assert planned("h100-x4", model="minimax-m2.7-fp8", engine="vllm-0.33").errors == ()
    with pytest.raises(NotPossible, match="among 4 GPUs at most, not among 8"):
        planned("h100-x8", model="minimax-m2.7-fp8")


def test_minimax_uses_four_of_eight_gpus_or_divides_whole_experts() -> None:
    kind = Choice(profile="h200-x8", model="minimax-m2.5-fp8", runtime="compose")
    with pytest.raises(NotPossible, match="among 4 GPUs at most, not among 8: choose a --profile with 4"):
        plan_deployment(MACHINES["h200-x8"], kind, CATALOG)

    def found(**edited: str) -> Plan:
        return plan_deployment(
            MACHINES["h200-x8"], replace(kind, edited={"TENSOR_PARALLEL_SIZE": "4", **edited}), CATALOG
        )

    assert (found().settings.tensor_parallel_size, found().errors) == (4, ())
    # vLLM divides the weights of experts over all copies, unless each GPU has whole experts
    (refused,) = found(DATA_PARALLEL_SIZE="2").errors
    assert refused.id == "heads-do-not-divide"
    assert "TENSOR_PARALLEL_SIZE x DATA_PARALLEL_SIZE=8 exceeds the 4 GPUs" in refused.message
    assert found(DATA_PARALLEL_SIZE="2", EXTRA_ARGS="--enable-expert-parallel").errors == ()


def test_a_backend_of_latent_attention_reads_fp8() -> None:
    for profile, readers in (("b200-x8", {"FLASHINFER_MLA", "TRITON_MLA"}), ("a100", set()), ("h100", {"TRITON_MLA"})):
        on = backends_on(CATALOG.profiles[profile], CATALOG.engines["vllm-0.33"])
        assert {one.name for one in on if one.fp8_kv and one.needs} == readers
    edited = {"KV_CACHE_DTYPE": "fp8"}
    choice = Choice(profile="b200-x8", model="kimi-k2.5-nvfp4", runtime="compose", edited=edited)
    assert plan_deployment(MACHINES["b200-x8"], choice, CATALOG).errors == ()
    other = Choice(profile="h100", runtime="compose", edited={"ATTENTION_BACKEND": "TRITON_MLA"})
    (refused,) = plan_deployment(MACHINES["h100"], other, CATALOG).errors
    assert refused.message.endswith(": the backend needs latent attention (MLA)")


def test_a_forced_fp8_cache_gets_backends_that_read_it() -> None:
    # asked of vLLM 0.33.0: "SM90 FP8 KV with mm_prefix requires Triton"; FlashAttention 2 of an RTX 5090 reads no FP8
    for profile in ("h100", "h200", "b200"):
        plan = planned(profile, model="gemma-4-31b-it-nvfp4", engine="vllm-0.33")
        used = (plan.settings.attention_backend, plan.settings.dflash_attention_backend)
        assert (used, plan.errors) == (("TRITON_ATTN", "FLASH_ATTN"), ())
    assert planned("h100", model="gemma-4-31b-it-fp8").settings.attention_backend == "FLASH_ATTN"
    with pytest.raises(NotPossible, match="requires an FP8 cache"):
        planned("rtx-5090-x2", model="gemma-4-31b-it-nvfp4", engine="vllm-0.33")


def test_a_drafter_of_four_bits_goes_with_vllm_and_not_with_sglang() -> None:
    # SGLang loads it and accepts none of its draft tokens (sgl-project/sglang#39087)
    pair = "qwen3.8-27b-int4-w4a16-drafter"
    plan = planned("rtx-5090", model=pair)
    assert plan.engine.name == "vllm-0.33"
    assert {one.id: one.severity for one in plan.findings}["drafter-quantised"] == "note"
    with pytest.raises(NotPossible, match="does not run drafters with quantized weights"):
        planned("rtx-5090", model=pair, engine="sglang")


@pytest.mark.parametrize("pair", ["qwen3.8-27b-gguf", "muse-glimmer-30b-gguf"])
def test_one_3090_serves_a_drafter_of_four_bits_with_llamacpp(pair: str) -> None:
    plan = planned("rtx-3090", model=pair)
    assert plan.engine.name == "llamacpp-b11434"
    assert plan.pair.drafter.quantised
    assert plan.errors == ()


@pytest.mark.parametrize(
    ("profile", "backend"), [("h200-x8", "FLASH_ATTN_MLA"), ("b200-x8", "FLASHINFER_MLA")]
)  # fmt: skip
def test_latent_attention_gets_a_backend_of_its_own(profile: str, backend: str) -> None:
    settings = planned(profile, model="kimi-k2.5-nvfp4", engine="vllm-0.33").settings
    assert settings.attention_backend == backend
    assert settings.dflash_attention_backend == "FLASH_ATTN"
