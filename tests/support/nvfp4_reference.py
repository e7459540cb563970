"""What an NVFP4_AWQ checkpoint computes, without the engine: its weights as float64 numbers, and the model with them.

    python -m tests.support.nvfp4_reference CHECKPOINT TOKENS.json LOGITS.json

The numbers are written out here a second time, bit by bit from the formats' definitions, to hold the loader against.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor


def numbers(weights: dict[str, Tensor], module: str) -> Tensor:
    """The weights (out, in) of one linear layer, in float64; `pre_quant_scale` is in them, column by column."""
    packed = weights[f"{module}.weight"]
    codes = torch.stack((packed % 16, packed // 16), dim=-1).reshape(packed.shape[0], -1).long()
    exponent, mantissa = (codes >> 1) & 3, codes & 1
    size = torch.where(exponent == 0, mantissa / 2, 2.0 ** (exponent - 1) * (1 + mantissa / 2)).double()
    scale = _e4m3(weights[f"{module}.weight_scale"]) * weights[f"{module}.weight_scale_2"].double()
    found = torch.where(codes >= 8, -size, size) * scale.repeat_interleave(16, dim=1)
    before = weights.get(f"{module}.pre_quant_scale")
    return found if before is None else found * before.double()


def _e4m3(scales: Tensor) -> Tensor:
    codes = scales.view(torch.uint8).long()
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = torch.where(exponent == 0, mantissa * 2.0**-9, 2.0 ** (exponent - 7) * (1 + mantissa / 8)).double()
    return torch.where(codes >= 128, -size, size)


def written_out(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """All weights of a checkpoint as a model without quantisation has them, in float64."""
    scales = {"weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"}
    found = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        if kind not in scales:
            found[name] = numbers(weights, module) if f"{module}.weight_scale" in weights else tensor.double()
    return found


def main(checkpoint: str, tokens: str, answers: str) -> None:
    """Write the logits at each position of each prompt."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    config = AutoConfig.from_pretrained(checkpoint)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = Qwen3_5ForConditionalGeneration(config).double().eval()
    tensors = load_file(Path(checkpoint) / "model.safetensors")
    # Transformers has no module for the MTP head
    model.load_state_dict(written_out({name: one for name, one in tensors.items() if not name.startswith("mtp.")}))
    prompts = json.loads(Path(tokens).read_text())
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([prompt])).logits[0].tolist() for prompt in prompts]
    Path(answers).write_text(json.dumps(logits))


if __name__ == "__main__":
    main(*sys.argv[1:])
