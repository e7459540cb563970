"""The tiny target with two key heads in each recurrent layer instead of one, which two ranks can share out.

Both heads are the same, so the model computes what the tiny target computes.
"""

import json
import shutil
from pathlib import Path

from dflash_deploy.assets import asset
from tests.support.mtp_target import Tensor, read_tensors, write_tensors

# Tensors whose rows are queries, keys and values, in this order.
SPLIT = ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight")


def target_for_two(target: Path) -> Path:
    """Write the checkpoint to `target` and return it."""
    shutil.copytree(asset("models/tiny/target"), target)
    config = json.loads((target / "config.json").read_text())
    text = config["text_config"]
    assert text["linear_num_key_heads"] == 1
    text["linear_num_key_heads"] = 2
    (target / "config.json").write_text(json.dumps(config, indent=2))
    weights = read_tensors(target / "model.safetensors")
    rows = text["linear_key_head_dim"]
    split = {name: _twice(one, rows) if name.endswith(SPLIT) else one for name, one in weights.items()}
    write_tensors(target / "model.safetensors", split)
    return target


def _twice(tensor: Tensor, rows: int) -> Tensor:
    """The queries twice, then the keys twice, then the values; `rows` are those of a head."""
    size = len(tensor.data) // tensor.shape[0] * rows
    queries, keys, values = tensor.data[:size], tensor.data[size : 2 * size], tensor.data[2 * size :]
    return Tensor((tensor.shape[0] + 2 * rows, *tensor.shape[1:]), queries * 2 + keys * 2 + values)
