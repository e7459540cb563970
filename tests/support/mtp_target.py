"""The tiny target with a head for multi-token prediction, laid out as Qwen3.5's checkpoints have theirs.

Nobody trained it: its layer is the target's last one with full attention, and it reads the target's hidden state alone.
Its drafts are hardly ever right, which is no matter for what is made, counted and answered.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dflash_deploy.assets import asset

LAST_FULL_ATTENTION = "model.language_model.layers.7."


def target_with_head(target: Path) -> Path:
    """Write the checkpoint to `target` and return it."""
    shutil.copytree(asset("models/tiny/target"), target)
    weights = load_file(target / "model.safetensors")
    norm = weights["model.language_model.norm.weight"]
    size = norm.shape[0]
    head = {
        "mtp.fc.weight": torch.cat([torch.zeros(size, size), torch.eye(size)], dim=1).to(norm.dtype),
        "mtp.norm.weight": norm.clone(),
        # Qwen3.5's norms add one to their weights
        "mtp.pre_fc_norm_hidden.weight": torch.zeros_like(norm),
        "mtp.pre_fc_norm_embedding.weight": torch.zeros_like(norm),
    }
    for name, weight in weights.items():
        if name.startswith(LAST_FULL_ATTENTION):
            head[f"mtp.layers.0.{name.removeprefix(LAST_FULL_ATTENTION)}"] = weight.clone()
    save_file(weights | head, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return target
