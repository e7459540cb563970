"""Entries of models that the catalog does not have, from config.json and GGUF headers."""

from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Family
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.described import FoundModel, describe, dialect_of, quantisation_of

ROOT = Path(__file__).parents[3]

# Values of published config.json; parameters as their publishers state them, in billions: all, and active per token.
# GLM 4.5: slime scripts/models/glm4.5-*.sh, Megatron-Bridge docs/models/llm/glm45.md, transformers doc glm4_moe.md
GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}
PUBLISHED: dict[str, tuple[dict[str, Any], float, float, int]] = {
    "GLM-4.5-Air": (
        {
            **GLM,
            "hidden_size": 4096,
            "num_hidden_layers": 46,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "first_k_dense_replace": 1,
        },
        106,
        12,
        46 * 2 * 8 * 128,
    ),
    "GLM-4.5": (
        {
            **GLM,
            "hidden_size": 5120,
            "num_hidden_layers": 92,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "first_k_dense_replace": 3,
        },
        355,
        32,
        92 * 2 * 8 * 128,
    ),
    # DeepSeek V3: 671B with 37B active (its README); values as in DeepSeek-V3.2's inference config
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "num_attention_heads": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        },
        671,
        37,
        61 * 576,
    ),
    # Qwen3 30B A3B: 30.5B with 3.3B active (its card); values in slime scripts/models/qwen3-30B-A3B.sh
    "Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
        30.5,
        3.3,
        48 * 2 * 4 * 128,
    ),
}


def described(config: dict[str, Any], **changes: Any) -> Family:
    found = FoundModel("own", {"repo": "own/model"}, {**config, **changes}, 1000)
    return describe(found, None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_cache_are_near_the_published_figures(name: str) -> None:
    config, parameters, active, elements = PUBLISHED[name]
    shape = described(config).shape
    assert shape.parameters / 1e9 == pytest.approx(parameters, rel=0.01)
    # both tables of the embedding are counted, of which a token reads one row
    assert (shape.active_parameters or 0) / 1e9 == pytest.approx(active, rel=0.12)
    latent, full = shape.latent_attention, shape.full_attention
    cached = latent.layers * latent.width if latent else full.layers * 2 * full.kv_heads * full.head_dim if full else 0
    assert cached == elements


def test_layers_are_counted_by_their_kind() -> None:
    kinds = ["sliding_attention", "full_attention"] * 12
    shape = described(PUBLISHED["Qwen3-30B-A3B"][0], num_hidden_layers=24, layer_types=kinds, sliding_window=128).shape
    assert shape.full_attention is not None
    assert shape.sliding_attention is not None
    assert (shape.full_attention.layers, shape.sliding_attention.window) == (12, 128)


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({}, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq"}, "int4-awq"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4-modelopt"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-compressed-tensors"),
    ],
)
def test_the_quantization_is_recognised(config: dict[str, str], known: str) -> None:
    node = {"quantization_config": config} if config else {}
    assert quantisation_of(FoundModel("own", {}, node, 1)) == known


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized with gptq"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"architectures": ["DFlashDraftModel"]}, "is a draft model"),
    ],
)
def test_what_no_engine_serves_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotPossible) as refused:
        described(PUBLISHED["Qwen3-30B-A3B"][0], **changes)
    assert reason in refused.value.message


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<|start|>assistant<|channel|>", "openai", "openai_gptoss"),
        ("<tool_call><function=f>", "qwen3_coder", None),
        ("<think></think><tool_call>{}", "hermes", "qwen3"),
        ("<tool_call>f<arg_key>k</arg_key>", "glm45", "glm45"),
        ("[TOOL_CALLS]", "mistral", None),
        ("{{ messages }}", None, None),
    ],
)
def test_parsers_are_those_of_the_chat_template(template: str, tools: str | None, reasoning: str | None) -> None:
    found = dialect_of(template)
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_each_parser_of_a_known_family_that_a_template_can_show_is_in_the_table() -> None:
    known = {pair.family.tool_call_parser for pair in load_catalog().pairs.values()} - {None, "muse_glimmer"}
    shown = {"openai", "gemma4", "minimax_m2", "kimi_k2", "qwen3_coder", "hermes", "llama3_json"}
    assert known == shown


def test_a_drafter_of_another_size_is_refused() -> None:
    drafter = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 1024,
        "block_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 151936,
    }
    target = FoundModel("own", {"repo": "own/model"}, PUBLISHED["Qwen3-30B-A3B"][0], 1000)
    with pytest.raises(NotPossible) as refused:
        describe(target, FoundModel("draft", {"repo": "own/draft"}, drafter, 10))
    assert "hidden size of 1024, the target has 2048" in refused.value.message
    fits = describe(target, FoundModel("draft", {"repo": "own/draft"}, {**drafter, "hidden_size": 2048}, 10))
    assert (fits.drafter.block_size, fits.drafter.absent) == (8, False)
