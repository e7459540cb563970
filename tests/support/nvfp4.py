"""A checkpoint quantised to ModelOpt's NVFP4_AWQ, from a Qwen3.5 in BF16: the tiny target, unless told otherwise.

    python -m tests.support.nvfp4 TARGET [SOURCE]

The tensors are laid out as ModelOpt 0.47 exports them. The scales of the activation come from the weights and a seed,
since there is nothing to calibrate: a loader must cope with any. In layer 0 the parts of each fused projection share
theirs, as after ModelOpt's own fusion; everywhere else they differ. Layer 1 has none for `down_proj`, as where the
export has folded it into `up_proj`.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_deploy.assets import asset

# Where the metadata stands: ModelOpt's own file, or `quantization_config` in config.json.
Spelling = Literal["hf_quant_config", "config"]

# Projections of one input, which the engine computes together.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z"))

ALONE = ("o_proj", "down_proj", "out_proj")

# What stays in BF16, in ModelOpt's wildcards.
EXCLUDED = [
    "lm_head",
    "mtp*",
    "model.visual*",
    "*.linear_attn.conv1d",
    "model.language_model.layers.*.linear_attn.in_proj_a",
    "model.language_model.layers.*.linear_attn.in_proj_b",
]

GROUP = 16
LARGEST_E2M1 = 6.0
LARGEST_E4M3 = 448.0
# The largest activation that `input_scale` is made for; read by kernels alone that multiply in four bits.
ACTIVATION_PEAK = 32.0


def quantise_checkpoint(target: Path, source: Path | None = None, *, spelling: Spelling = "hf_quant_config") -> Path:
    """Write the checkpoint to `target` and return it."""
    shutil.copytree(source or asset("models/tiny/target"), target)
    weights = load_file(target / "model.safetensors")
    save_file(dict(_quantised(weights)), target / "model.safetensors", metadata={"format": "pt"})
    stated: dict[str, object] = {"quant_algo": "NVFP4_AWQ", "group_size": GROUP}
    if spelling == "hf_quant_config":
        stated |= {"kv_cache_quant_algo": None, "exclude_modules": EXCLUDED}
        document = {"producer": {"name": "modelopt", "version": "0.43.0"}, "quantization": stated}
        (target / "hf_quant_config.json").write_text(json.dumps(document))
    else:
        config = json.loads((target / "config.json").read_text())
        config["quantization_config"] = stated | {"quant_method": "modelopt", "ignore": EXCLUDED}
        (target / "config.json").write_text(json.dumps(config))
    return target


def _quantised(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    chance = torch.Generator().manual_seed(20)
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        family = next((names for names in FUSED if last in names), (last,) if last in ALONE else None)
        if family is None or kind != "weight" or ".layers." not in name or name.startswith("mtp."):
            yield name, tensor
            continue
        whole = tensor
        if ".layers.0." in name:
            whole = torch.cat([weights[f"{parent}.{part}.weight"] for part in family])
            # the same jitter for each part
            chance.manual_seed(len(family))
        folded = ".layers.1." in name and last == "down_proj"
        scale = torch.ones_like(tensor[0]) if folded else smoothing(whole, chance)
        if not folded:
            yield f"{module}.pre_quant_scale", scale
        for key, packed in pack(tensor.float() / scale.float(), peak(whole.float() / scale.float())).items():
            yield f"{module}.{key}", packed


def smoothing(weight: Tensor, chance: torch.Generator) -> Tensor:
    """A positive BF16 scale for each input channel of (out, in), larger where weights are small, about 1 on average."""
    size = weight.float().abs().mean(dim=0).clamp(min=1e-6).rsqrt()
    jitter = torch.exp(0.3 * torch.randn(size.shape, generator=chance))
    return (size / size.mean() * jitter).to(torch.bfloat16)


def peak(weight: Tensor) -> Tensor:
    """The largest magnitude, which `weight_scale_2` is made for."""
    return weight.abs().max()


def pack(weight: Tensor, largest: Tensor) -> dict[str, Tensor]:
    """The four tensors of NVFP4 for a weight (out, in), already divided by its `pre_quant_scale`."""
    rows, columns = weight.shape
    second = largest / (LARGEST_E2M1 * LARGEST_E4M3)
    blocks = weight.view(rows, columns // GROUP, GROUP)
    first = (blocks.abs().amax(dim=-1) / LARGEST_E2M1 / second).clamp(min=2**-9).to(torch.float8_e4m3fn)
    wanted = blocks / (first.float() * second).unsqueeze(-1)
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = (wanted.abs().unsqueeze(-1) - numbers).abs().argmin(dim=-1)
    codes = (nearest + 8 * (wanted < 0)).to(torch.uint8).view(rows, columns)
    return {
        "weight": codes[:, 0::2] | (codes[:, 1::2] << 4),
        "weight_scale": first,
        "weight_scale_2": second,
        "input_scale": torch.tensor(ACTIVATION_PEAK / (LARGEST_E2M1 * LARGEST_E4M3)),
    }


if __name__ == "__main__":
    print(quantise_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None))
