"""Writes target and drafter as two directories in the layout of the Hugging Face Hub."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLVideoProcessor,
)

from . import drafter as shape
from .drafter import Drafter
from .mtp_head import MtpHead
from .settings import (
    BLOCK_SIZE,
    MAX_PIXELS,
    MAX_POSITIONS,
    MERGE_SIZE,
    PATCH_SIZE,
    RMS_NORM_EPS,
    TARGET_LAYER_IDS,
    TEMPORAL_PATCH_SIZE,
    VOCABULARY_SIZE,
)
from .tokenizer import END_OF_TEXT, END_OF_TURN

VIDEO_PIXELS = TEMPORAL_PATCH_SIZE * MAX_PIXELS


def export_target(
    model: Qwen3_5ForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    processor: Qwen2VLImageProcessor,
    directory: Path,
) -> None:
    """Weights in bfloat16, configuration, tokenizer with chat template, image and video processor."""
    ends = [END_OF_TURN, END_OF_TEXT]
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(ends),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        # greedy for clients that send no temperature: vLLM and SGLang read `temperature` here, and ignore `do_sample`
        do_sample=True,
        temperature=0.0,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    processor.save_pretrained(directory)
    _video_processor().save_pretrained(directory)
    _make_readable(directory)


def export_head(head: MtpHead, directory: Path) -> None:
    """Adds the head to the target's weights and configuration in `directory`; its other weights stay as they are."""
    file = directory / "model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if not name.startswith("mtp.")}
    added = {f"mtp.{name}": weight.to(torch.bfloat16).contiguous() for name, weight in head.state_dict().items()}
    save_file(weights | added, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["mtp_num_hidden_layers"] = len(head.layers)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _make_readable(directory)


def export_drafter(drafter: Drafter, hidden_size: int, target_layers: int, mask_token_id: int, directory: Path) -> None:
    """Weights in bfloat16, without embeddings and output head (the engine uses the target's), and configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in drafter.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": hidden_size,
        "intermediate_size": shape.INTERMEDIATE_SIZE,
        "num_hidden_layers": shape.LAYERS,
        "num_attention_heads": shape.HEADS,
        "num_key_value_heads": shape.KV_HEADS,
        "head_dim": shape.HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.ROPE_THETA},
        "max_position_embeddings": MAX_POSITIONS,
        "layer_types": ["full_attention"] * shape.LAYERS,
        "tie_word_embeddings": False,
        "num_target_layers": target_layers,
        "block_size": BLOCK_SIZE,
        "dflash_config": {
            "block_size": BLOCK_SIZE,
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(TARGET_LAYER_IDS),
        },
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _make_readable(directory)


def _make_readable(directory: Path) -> None:
    """Let all users read the files: safetensors makes them private, but the server may run as another user."""
    for path in directory.iterdir():
        path.chmod(0o644)


def _video_processor() -> Qwen3VLVideoProcessor:
    """vLLM's processor for this architecture requires it; the models are not trained on video."""
    return Qwen3VLVideoProcessor(
        size={"shortest_edge": VIDEO_PIXELS, "longest_edge": VIDEO_PIXELS},
        patch_size=PATCH_SIZE,
        temporal_patch_size=TEMPORAL_PATCH_SIZE,
        merge_size=MERGE_SIZE,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
