"""The tiny target with a head for multi-token prediction, laid out as Qwen3.5's checkpoints have theirs.

Nobody trained it: its layer is the target's last one with full attention, and it reads the target's hidden state alone.
Its drafts are hardly ever right, which is no matter for what is made, counted and answered.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.assets import asset

LAST_FULL_ATTENTION = "model.language_model.layers.7."


ONE, ZERO = b"\x80\x3f", b"\x00\x00"
"""In BF16, the type of all its tensors. Written without torch, whose import takes three seconds."""

PREFIX = 8
"""Bytes before the header of a safetensors file: its length."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in BF16."""

    shape: tuple[int, ...]
    data: bytes


def target_with_head(target: Path) -> Path:
    """Write the checkpoint to `target` and return it."""
    shutil.copytree(asset("models/tiny/target"), target)
    weights = _read(target / "model.safetensors")
    norm = weights["model.language_model.norm.weight"]
    (size,) = norm.shape
    zeros = Tensor((size,), ZERO * size)
    # zeros beside the identity: it takes nothing of the embedding, and the hidden state as it is
    rows = (ZERO * (size + row) + ONE + ZERO * (size - row - 1) for row in range(size))
    head = {
        "mtp.fc.weight": Tensor((size, 2 * size), b"".join(rows)),
        "mtp.norm.weight": norm,
        # Qwen3.5's norms add one to their weights
        "mtp.pre_fc_norm_hidden.weight": zeros,
        "mtp.pre_fc_norm_embedding.weight": zeros,
    }
    for name, weight in weights.items():
        if name.startswith(LAST_FULL_ATTENTION):
            head[f"mtp.layers.0.{name.removeprefix(LAST_FULL_ATTENTION)}"] = weight
    _write(target / "model.safetensors", weights | head)
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return target


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    content = file.read_bytes()
    start = PREFIX + int.from_bytes(content[:PREFIX], "little")
    header = json.loads(content[PREFIX:start])
    found = {}
    for name, row in header.items():
        if name != "__metadata__":
            assert row["dtype"] == "BF16", name
            begin, end = row["data_offsets"]
            found[name] = Tensor(tuple(row["shape"]), content[start + begin : start + end])
    return found


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file: the length of the header, the header, the bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % PREFIX)
    file.write_bytes(len(text).to_bytes(PREFIX, "little") + text + b"".join(one.data for one in tensors.values()))
