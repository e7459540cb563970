"""config.json of target and drafter, made from the numbers of the catalog: what vLLM reads before the weights.

Only the numbers of the catalog decide what is compared. Values that no decision depends on (vocabulary of special
tokens, sizes of the vision tower, intermediate sizes) are small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dflash_deploy.assets import asset
from dflash_deploy.catalog.models import Drafter, ModelPair, Shape
from dflash_deploy.plan.result import Plan

Config = dict[str, Any]

ROPE: Config = {"rope_type": "default", "rope_theta": 1000000.0}


def _layers(shape: Shape) -> list[str]:
    """The kinds of the layers, in the pattern of these families: full ones at equal distances, the last is one."""
    full = shape.full_attention.layers if shape.full_attention else 0
    other = "linear_attention" if shape.linear_attention else "sliding_attention"
    every = shape.layers // full
    kinds = ["full_attention" if (index + 1) % every == 0 else other for index in range(shape.layers)]
    assert kinds.count("full_attention") == full
    return kinds


def _attention(shape: Shape) -> Config:
    full = shape.full_attention
    assert full is not None
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden_size,
        "intermediate_size": 4 * shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": full.heads,
        "num_key_value_heads": full.kv_heads,
        "head_dim": full.head_dim,
        "max_position_embeddings": shape.context,
        "rope_parameters": ROPE,
        "dtype": "bfloat16",
    }


def _experts(shape: Shape, size: int = 512) -> Config:
    if shape.experts is None:
        return {}
    return {
        "num_experts": shape.experts[0],
        "num_experts_per_tok": shape.experts[1],
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _linear(shape: Shape) -> Config:
    linear = shape.linear_attention
    assert linear is not None
    return {
        "layer_types": _layers(shape),
        "linear_conv_kernel_dim": linear.conv_kernel,
        "linear_key_head_dim": linear.key_dim,
        "linear_num_key_heads": linear.key_heads,
        "linear_num_value_heads": linear.value_heads,
        "linear_value_head_dim": linear.value_dim,
        "partial_rotary_factor": 0.25,
    }


def _plain(shape: Shape, *, architecture: str, model_type: str) -> Config:
    return {"architectures": [architecture], "model_type": model_type, **_attention(shape), **_experts(shape)}


def _qwen3_next(shape: Shape) -> Config:
    return _plain(shape, architecture="Qwen3NextForCausalLM", model_type="qwen3_next") | _linear(shape)


def _qwen3_5(shape: Shape) -> Config:
    """The tiny target's config.json, which has all keys of its family, with other numbers."""
    config: Config = json.loads((asset("models/tiny/target") / "config.json").read_text())
    moe = "_moe" if shape.experts else ""
    name = "Qwen3_5Moe" if shape.experts else "Qwen3_5"
    rope = config["text_config"]["rope_parameters"] | {"mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25}
    text = _attention(shape) | _linear(shape) | _experts(shape) | {"rope_parameters": rope}
    return config | {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": f"qwen3_5{moe}",
        "text_config": config["text_config"]
        | text
        | {"model_type": f"qwen3_5{moe}_text", "mamba_ssm_dtype": "float32"},
        "vision_config": config["vision_config"]
        | {"out_hidden_size": shape.hidden_size, "model_type": f"qwen3_5{moe}"},
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
    }


def _gemma4(shape: Shape, *, unified: bool = False) -> Config:
    full, sliding = shape.full_attention, shape.sliding_attention
    assert full is not None
    assert sliding is not None
    name, kind = ("Gemma4Unified", "gemma4_unified") if unified else ("Gemma4", "gemma4")
    text: Config = {
        "model_type": f"{kind}_text",
        **_attention(shape),
        "head_dim": sliding.head_dim,
        "num_key_value_heads": sliding.kv_heads,
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.kv_heads,
        "attention_k_eq_v": True,
        "sliding_window": sliding.window,
        "layer_types": _layers(shape),
        "use_bidirectional_attention": "vision",
        "hidden_size_per_layer_input": 0,
    }
    del text["rope_parameters"]
    if shape.experts:
        text |= {"enable_moe_block": True, "num_experts": shape.experts[0], "top_k_experts": shape.experts[1]}
        text["moe_intermediate_size"] = 512
    vision: Config = {"model_type": f"{kind}_vision"}
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": kind,
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }


def _gpt_oss(shape: Shape) -> Config:
    sliding = shape.sliding_attention
    assert sliding is not None
    assert shape.experts is not None
    kinds = ["sliding_attention" if index % 2 == 0 else "full_attention" for index in range(shape.layers)]
    return _plain(shape, architecture="GptOssForCausalLM", model_type="gpt_oss") | {
        "layer_types": kinds,
        "sliding_window": sliding.window,
        "num_local_experts": shape.experts[0],
        "intermediate_size": shape.hidden_size,
        "rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    }


def _muse_glimmer(shape: Shape) -> Config:
    sliding = shape.sliding_attention
    assert sliding is not None
    text = {**_attention(shape), "model_type": "muse_glimmer_text", "sliding_window": sliding.window}
    return {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "dtype": "bfloat16",
        "text_config": text | {"layer_types": _layers(shape)},
        "vision_config": {"model_type": "muse_glimmer_vision"},
    }


def _minimax(shape: Shape) -> Config:
    assert shape.experts is not None
    return _plain(shape, architecture="MiniMaxM2ForCausalLM", model_type="minimax_m2") | {
        "num_local_experts": shape.experts[0],
        "rotary_dim": 64,
        "use_qk_norm": True,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    }


def _kimi(shape: Shape) -> Config:
    latent = shape.latent_attention
    assert latent is not None
    assert shape.experts is not None
    text: Config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden_size,
        "intermediate_size": 4 * shape.hidden_size,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": latent.heads,
        "num_key_value_heads": latent.heads,
        "kv_lora_rank": latent.width - 64,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "q_lora_rank": 1536,
        "n_routed_experts": shape.experts[0],
        "num_experts_per_tok": shape.experts[1],
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": shape.context,
        "rope_parameters": ROPE,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "kimi_k25_vision"},
    }


_FAMILIES: Mapping[str, Callable[[Shape], Config]] = {
    "gemma-4-12b-it": partial(_gemma4, unified=True),
    "gemma-4-26b-a4b-it": _gemma4,
    "gemma-4-31b-it": _gemma4,
    "gpt-oss-120b": _gpt_oss,
    "gpt-oss-20b": _gpt_oss,
    "kimi-k2.5": _kimi,
    "llama-3.1-8b-instruct": partial(_plain, architecture="LlamaForCausalLM", model_type="llama"),
    "minimax-m2.5": _minimax,
    "muse-glimmer-30b": _muse_glimmer,
    "qwen3-4b": partial(_plain, architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3-8b": partial(_plain, architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3-coder-30b-a3b": partial(_plain, architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe"),
    "qwen3-coder-next": _qwen3_next,
}


def target_config(pair: ModelPair) -> Config:
    """config.json of a target."""
    make = _FAMILIES.get(pair.family.name, _qwen3_5)
    quantization = QUANTIZATIONS[pair.target.quantisation]
    if quantization and pair.target.forced_fp8_kv:
        quantization = quantization | {"kv_cache_quant_algo": "FP8"}
    return make(pair.shape) | ({"quantization_config": quantization} if quantization else {})


_NVFP4_CT: Config = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "symmetric": True,
            },
            "input_activations": {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "dynamic": "local",
            },
        }
    },
}

# `quantization_config` of each quantization in the catalog.
_INT4_CT: Config = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
        }
    },
}

QUANTIZATIONS: Mapping[str, Config | None] = {
    "bf16": None,
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "nvfp4-modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
    "nvfp4-awq": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ", "group_size": 16, "ignore": ["lm_head"]},
    "nvfp4-compressed-tensors": _NVFP4_CT,
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "int4-autoround": {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
    },
    "int4-compressed-tensors": _INT4_CT,
    "int4-awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "gguf": None,
}


def drafter_config(drafter: Drafter, shape: Shape) -> Config:
    """config.json of a DFlash drafter, with the keys of z-lab's."""
    kinds = {
        "full": ["full_attention"] * drafter.layers,
        "sliding": ["sliding_attention"] * drafter.layers,
        "mixed": ["sliding_attention"] * (drafter.layers - 1) + ["full_attention"],
    }[drafter.layer_types or "full"]
    hidden = drafter.hidden_size or shape.hidden_size
    read = drafter.target_layer_ids or [1, shape.layers // 2, shape.layers - 3]
    return {
        "architectures": [drafter.architecture],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": drafter.layers,
        "num_attention_heads": 4 * drafter.kv_heads,
        "num_key_value_heads": drafter.kv_heads,
        "head_dim": drafter.head_dim,
        "rope_parameters": ROPE,
        "max_position_embeddings": shape.context,
        "layer_types": kinds,
        "sliding_window": drafter.window or 2048,
        "use_sliding_window": True,
        "max_window_layers": 0,
        "num_target_layers": shape.layers,
        "block_size": drafter.block_size,
        "dflash_config": {
            "block_size": drafter.block_size,
            "mask_token_id": shape.vocabulary - 1,
            "target_layer_ids": read,
        },
    }


def configs(plan: Plan) -> tuple[Config, Config]:
    """config.json of the target and of the drafter of a plan."""
    pair = plan.pair
    if pair.target.bundled:
        target = json.loads((asset("models/tiny/target") / "config.json").read_text())
        return target, json.loads((asset("models/tiny/drafter") / "config.json").read_text())
    return target_config(pair), drafter_config(pair.drafter, pair.shape)
