"""Entries of models that the catalog does not have, from config.json and GGUF headers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog, load_dialects
from dflash_deploy.catalog.models import Family
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.described import FoundModel, describe, dialect_of, quantisation_of


def read(value: Any) -> Any:
    """A value of shapes.yaml, with its lists written out."""
    if isinstance(value, dict) and "repeat" in value:
        return value["repeat"] * value["times"] + value.get("then", [])
    if isinstance(value, dict) and "runs" in value:
        return [one for one, times in value["runs"] for _ in range(times)]
    return {key: read(one) for key, one in value.items()} if isinstance(value, dict) else value


SHAPES = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text())
PUBLISHED = {one["name"]: (read(one["config"]), one["about"]) for one in SHAPES}
KNOWN = [name for name, (_, about) in PUBLISHED.items() if "refused" not in about]
QWEN3 = PUBLISHED["Qwen3-30B-A3B"][0]


def described(config: dict[str, Any], **changes: Any) -> Family:
    found = FoundModel("own", {"repo": "own/model"}, {**config, **changes}, 1000)
    return describe(found, None)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_and_cache_are_near_the_published_figures(name: str) -> None:
    config, about = PUBLISHED[name]
    family = described(config)
    shape, active = family.shape, about.get("active")
    assert shape.parameters / 1e9 == pytest.approx(about["parameters"], rel=0.025)
    # both tables of the embedding are counted, of which a token reads one row
    assert (shape.active_parameters or 0) / 1e9 == pytest.approx(active or 0, rel=0.15)
    assert bool(shape.vision_parameters) == about["sees"]
    assert family.targets[0].quantisation == about["quantisation"]
    latent, full = shape.latent_attention, shape.full_attention
    cached = latent.layers * latent.width if latent else full.layers * 2 * full.kv_heads * full.head_dim if full else 0
    assert cached == about["cached"]


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - KNOWN))
def test_layers_whose_memory_is_not_known_are_refused_by_name(name: str) -> None:
    config, about = PUBLISHED[name]
    with pytest.raises(NotPossible, match=about["refused"]):
        described(config)


def test_layers_of_mamba_keep_a_state_of_fixed_size() -> None:
    shape = described(PUBLISHED["granite-4.0-h-small"][0]).shape
    assert shape.linear_attention is not None
    # 128 heads of 64 by a state of 128, in FP32
    assert (shape.linear_attention.layers, shape.linear_attention.bytes_per_state) == (36, 128 * 64 * 128 * 4)


def test_a_list_that_is_shorter_than_the_model_is_refused() -> None:
    with pytest.raises(NotPossible, match="the list of layers does not have"):
        described(QWEN3, layer_types=["full_attention"] * 3)


def test_layers_are_counted_by_their_kind() -> None:
    kinds = ["sliding_attention", "full_attention"] * 12
    shape = described(QWEN3, num_hidden_layers=24, layer_types=kinds, sliding_window=128).shape
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
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4-compressed-tensors"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4-gptq"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_algo": "fp8"}, "fp8"),
    ],
)
def test_the_quantization_is_recognised(config: dict[str, str], known: str) -> None:
    node = {"quantization_config": config} if config else {}
    assert quantisation_of(FoundModel("own", {}, node, 1)) == known


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "eetq"}}, "quantized with eetq"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"architectures": ["DFlashDraftModel"]}, "is a draft model"),
    ],
)
def test_what_no_engine_serves_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotPossible) as refused:
        described(QWEN3, **changes)
    assert reason in refused.value.message


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<|start|>assistant<|channel|>", "openai", "openai_gptoss"),
        ("<tool_call><function=f>", "qwen3_coder", None),
        ("<think></think><tool_call>{}", "hermes", "qwen3"),
        ("<tool_call>f<arg_key>k</arg_key>", "glm45", "glm45"),
        ("[TOOL_CALLS]", "mistral", None),
        ("ns = ']<]minimax[>[' <tool_call>", "minimax_m3", "minimax_m3"),
        ("truncate_history_thinking <tool_call><function=f><think>", "qwen3_coder", "nemotron_v3"),
        ("<seed:think><seed:tool_call><function=f>", "seed_oss", "seed_oss"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>```json</think>", "deepseek_v3", "deepseek_r1"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c><think>", "deepseek_v31", "deepseek_v3"),
        ("{{ messages }}", None, None),
    ],
)
def test_parsers_are_those_of_the_chat_template(template: str, tools: str | None, reasoning: str | None) -> None:
    found = dialect_of(template)
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_each_parser_of_a_known_family_that_a_template_can_show_is_in_the_table() -> None:
    known = {pair.family.tool_call_parser for pair in load_catalog().pairs.values()} - {None, "muse_glimmer"}
    assert known <= {row.tools for row in load_dialects()}


def test_a_drafter_of_another_size_is_refused() -> None:
    drafter = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 1024,
        "block_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 151936,
    }
    target = FoundModel("own", {"repo": "own/model"}, QWEN3, 1000)
    with pytest.raises(NotPossible) as refused:
        describe(target, FoundModel("draft", {"repo": "own/draft"}, drafter, 10))
    assert "hidden size of 1024, the target has 2048" in refused.value.message
    fits = describe(target, FoundModel("draft", {"repo": "own/draft"}, {**drafter, "hidden_size": 2048}, 10))
    assert (fits.drafter.block_size, fits.drafter.absent) == (8, False)
