"""The tiny target without its MTP head, as quantized repositories leave it out."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.assets import asset

PREFIX = 8  # bytes before the header of a safetensors file: its length


@dataclass(frozen=True)
class Tensor:
    """A tensor in BF16."""

    shape: tuple[int, ...]
    data: bytes


def target_without_head(target: Path) -> Path:
    """Write the checkpoint to `target` and return it. Without torch, whose import takes three seconds."""
    shutil.copytree(asset("models/tiny/target"), target)
    weights = read_tensors(target / "model.safetensors")
    write_tensors(
        target / "model.safetensors", {name: one for name, one in weights.items() if not name.startswith("mtp.")}
    )
    config = json.loads((target / "config.json").read_text())
    del config["text_config"]["mtp_num_hidden_layers"]
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return target


def read_tensors(file: Path) -> dict[str, Tensor]:
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


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file: the length of the header, the header, the bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % PREFIX)
    file.write_bytes(len(text).to_bytes(PREFIX, "little") + text + b"".join(one.data for one in tensors.values()))
