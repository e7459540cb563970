"""Directories with config files only, for `--load-format dummy`: Qwen3.5-27B's shape and that of its drafter.

The sizes are those of dflash_deploy/catalog/families/qwen3.5-27b.yaml. Two follow from its byte counts:
intermediate_size 17408 and 32 query heads of the drafter. The tokenizer is the tiny target's, padded to the vocabulary
with tokens of its own, so that every token id can be decoded.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.intake.parse import parse_object

TINY = Path(__file__).resolve().parents[2] / "models/tiny/target"
VOCABULARY = 248320
LAYERS = ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(64)]
_ROPE = {"rope_type": "default", "rope_theta": 10000000}
_MROPE = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25}
_READ_LAYERS = [1, 10, 18, 27, 35, 44, 52, 61]


def write(place: Path, model: str) -> tuple[Path, Path]:
    """Write target and drafter of a model into `place`; its name says whether the target is in FP8.

    The tiny models are there already.
    """
    if model == "tiny":
        return TINY, TINY.parent / "drafter"
    target, drafter = place / "target", place / "drafter"
    for folder in (target, drafter):
        folder.mkdir(parents=True, exist_ok=True)
    tiny = parse_object(read_text(TINY / "config.json"))
    tokens = {name: tiny[name] for name in tiny if name.endswith("_token_id")}
    _write(target / "config.json", _target(fp8=model.endswith("fp8")) | tokens)
    _write(target / "generation_config.json", {"do_sample": False})
    _write(target / "tokenizer.json", _padded(parse_object(read_text(TINY / "tokenizer.json", limit=64 * MIB))))
    for file in (
        "chat_template.jinja",
        "tokenizer_config.json",
        "preprocessor_config.json",
        "video_preprocessor_config.json",
    ):
        shutil.copy(TINY / file, target / file)
    _write(drafter / "config.json", _drafter())
    return target.resolve(), drafter.resolve()


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1))


def _target(*, fp8: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_text", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
            "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
            "hidden_size": 5120, "intermediate_size": 17408, "layer_types": LAYERS, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
            "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
            "mtp_num_hidden_layers": 1, "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4,
            "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "use_cache": True,
            "rope_parameters": _ROPE | _MROPE,
            "vocab_size": VOCABULARY,
        },
        "vision_config": {
            "model_type": "qwen3_5_vision", "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
            "in_channels": 3, "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304,
            "out_hidden_size": 5120, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "deepstack_visual_indexes": [],
        },
    }  # fmt: skip
    if fp8:
        made["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": _in_bf16(),
        }
    return made


def _in_bf16() -> list[str]:
    """As in Qwen's FP8 checkpoints: embeddings, output head, vision, the MTP projection and the two small ones."""
    linear = [number for number, kind in enumerate(LAYERS) if kind == "linear_attention"]
    small = ("conv1d", "in_proj_a", "in_proj_b")
    blocks = ("attn.proj", "attn.qkv", "mlp.linear_fc1", "mlp.linear_fc2")
    vision = ("merger.linear_fc1", "merger.linear_fc2", "patch_embed.proj", "pos_embed")
    return [
        "lm_head", "model.language_model.embed_tokens", "mtp.fc",
        *(f"model.language_model.layers.{number}.linear_attn.{name}" for number in linear for name in small),
        *(f"model.visual.blocks.{number}.{name}" for number in range(27) for name in blocks),
        *(f"model.visual.{name}" for name in vision),
    ]  # fmt: skip


def _drafter() -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": VOCABULARY,
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 6, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-06,
        "rope_parameters": _ROPE, "max_position_embeddings": 262144, "tie_word_embeddings": False,
        "num_target_layers": 64, "block_size": 16, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "dflash_config": {"block_size": 16, "mask_token_id": 248070, "target_layer_ids": _READ_LAYERS},
        "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6,
    }  # fmt: skip


def _padded(tokenizer: dict[str, Any]) -> dict[str, Any]:
    known = tokenizer["model"]["vocab"]
    taken = {*known.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    known |= {f"\u0120t{number}": number for number in range(VOCABULARY) if number not in taken}
    return tokenizer
