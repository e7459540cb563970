"""Single layers of the real vLLM with NVFP4_AWQ weights, run in an environment of its engine.

    python -m tests.support.nvfp4_layers CASE...           one process
    python -m tests.support.nvfp4_layers RANK PORT         one of two that share a row-parallel layer

Prints one JSON object: for each case a list of numbers, or the refusal that it ended with. On a GPU the layers are in
BF16 and computed by the kernel that vLLM picks; errors are then those of BF16, and on Blackwell those of four-bit
activations.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.support.nvfp4 import EXCLUDED, pack, peak, smoothing
from tests.support.nvfp4_reference import numbers
from tests.support.ports import free_port

IN, HEADS, KV_HEADS, HEAD = 128, 4, 2, 32
CHANCE = torch.Generator().manual_seed(7)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16
Weights = dict[str, Tensor]
Part = tuple[str, Any]  # A part's name in the checkpoint, and the shard that vLLM's loader takes it for
QKV: tuple[Part, ...] = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"))
QKV_ROWS = (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD)
GATE_UP: tuple[Part, ...] = (("gate_proj", 0), ("up_proj", 1))
QKVZ: tuple[Part, ...] = (("in_proj_qkv", (0, 1, 2)), ("in_proj_z", 3))


def quantised(names: list[str], rows: list[int], *, scales: str = "different", peaks: str = "different") -> Weights:
    """Random weights for the named modules; `same` scales and peaks are those of the first."""
    plain = [torch.randn(count, IN, generator=CHANCE) * (1 + number) for number, count in enumerate(rows)]
    before = [smoothing(weight, CHANCE) for weight in plain]
    if scales == "same":
        before = [before[0]] * len(plain)
    divided = [weight / scale.float() for weight, scale in zip(plain, before, strict=True)]
    largest = [peak(weight) for weight in divided]
    if peaks == "same":
        largest = [torch.stack(largest).max()] * len(plain)
    weights: Weights = {}
    for name, weight, scale, top in zip(names, divided, before, largest, strict=True):
        weights |= {f"{name}.{key}": tensor for key, tensor in pack(weight, top).items()}
        if scales != "absent":
            weights[f"{name}.pre_quant_scale"] = scale
    return weights


def configuration(**metadata: Any) -> Any:
    """The quantisation that vLLM would make from a checkpoint's metadata, renamed as Qwen3.5 renames."""
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration as Model

    from dflash_deploy.serve.nvfp4.config import Nvfp4AwqConfig

    made = Nvfp4AwqConfig.from_config({"quant_algo": "NVFP4_AWQ", "quant_method": "modelopt", **metadata})
    made.packed_modules_mapping = Model.packed_modules_mapping
    made.apply_vllm_mapper(Model.hf_to_vllm_mapper)
    return made


def layer(kind: str, **metadata: Any) -> Any:
    """A layer as Qwen3.5 has it, on a processor in float32, so that what is compared is not rounding."""
    with torch.device(DEVICE):
        return _layer(kind, **metadata)


def _layer(kind: str, **metadata: Any) -> Any:
    from vllm.model_executor.layers import linear

    common = {"bias": False, "params_dtype": DTYPE, "quant_config": configuration(**metadata)}
    at = "language_model.model.layers.0"
    match kind:
        case "qkv":
            prefix = f"{at}.self_attn.qkv_proj"
            return linear.QKVParallelLinear(IN, HEAD, HEADS, KV_HEADS, prefix=prefix, **common)
        case "gate_up":
            return linear.MergedColumnParallelLinear(IN, [96, 96], prefix=f"{at}.mlp.gate_up_proj", **common)
        case "qkvz":
            prefix = f"{at}.linear_attn.in_proj_qkvz"
            return linear.MergedColumnParallelLinear(IN, [32, 32, 64, 64], prefix=prefix, **common)
        case _:
            common |= {"input_is_parallel": False}
            return linear.RowParallelLinear(IN, 64, prefix=f"{at}.mlp.down_proj", **common)


def load(made: Any, weights: Weights, parts: tuple[Part, ...] | None = None) -> Any:
    """Load as the models do, tensor by tensor, and finish as vLLM's loader does."""
    shards = dict(parts or ())
    for name, tensor in weights.items():
        module, _, key = name.rpartition(".")
        parameter = getattr(made, key)
        parameter.weight_loader(parameter, tensor, *([shards[module]] if parts else []))
    made.quant_method.process_weights_after_loading(made)
    return made


def error(made: Any, weights: Weights, names: list[str], bias: Tensor | None = None) -> float:
    """The relative error of the layer's output against float64."""
    x = torch.randn(5, IN, generator=CHANCE).to(DTYPE)
    at = x.to(DEVICE)
    got = made(at)[0] if bias is None else made.quant_method.apply(made, at, bias.to(at))
    wanted = torch.cat([x.double() @ numbers(weights, name).T for name in names], dim=-1)
    wanted = wanted if bias is None else wanted + bias.double()
    return float((got.double().cpu() - wanted).norm() / wanted.norm())


def _fused(kind: str, parts: tuple[Part, ...], rows: list[int], **sharing: str) -> list[float]:
    """The error, and how many multiplications the layer makes."""
    names = [name for name, _ in parts]
    weights = quantised(names, rows, **sharing)
    made = load(layer(kind), weights, parts)
    return [error(made, weights, names), len(getattr(made, "nvfp4_awq_parts", [made]))]


def qkv_of_different_scales() -> list[float]:
    return _fused("qkv", QKV, list(QKV_ROWS))


def gate_and_up_of_one_scale() -> list[float]:
    return _fused("gate_up", GATE_UP, [96, 96], scales="same", peaks="same")


def gate_and_up_of_different_scales() -> list[float]:
    return _fused("gate_up", GATE_UP, [96, 96])


def gate_and_up_of_one_scale_and_two_peaks() -> list[float]:
    return _fused("gate_up", GATE_UP, [96, 96], scales="same")


def gate_and_up_without_scales() -> list[float]:
    return _fused("gate_up", GATE_UP, [96, 96], scales="absent", peaks="same")


def one_tensor_for_three_parts() -> list[float]:
    return _fused("qkvz", QKVZ, [128, 64])


def with_a_bias() -> list[float]:
    weights = quantised(["gate_proj", "up_proj"], [96, 96])
    made = load(layer("gate_up"), weights, GATE_UP)
    return [error(made, weights, ["gate_proj", "up_proj"], torch.randn(192, generator=CHANCE))]


def folded_wrongly() -> list[float]:
    """How far off one scale for all parts would be: their mean, as where parts that differ are treated as equal."""
    names = [name for name, _ in QKV]
    weights = quantised(names, list(QKV_ROWS))
    made = load(layer("qkv"), weights, QKV)
    mean = torch.stack([weights[f"{name}.pre_quant_scale"] for name in names]).float().mean(dim=0)
    return [error(made, weights | {f"{name}.pre_quant_scale": mean for name in names}, names)]


def traced_in_one_piece() -> list[float]:
    """How far a graph of the layer is from the layer; a part that cannot be traced ends it."""
    made = load(layer("qkv"), quantised([name for name, _ in QKV], list(QKV_ROWS)), QKV)
    traced = torch.compile(lambda x: made.quant_method.apply(made, x), backend="eager", fullgraph=True)
    x = torch.randn(5, IN, generator=CHANCE).to(DEVICE, DTYPE)
    return [float((traced(x) - made(x)[0]).abs().max())]


def nan_in_a_scale() -> list[float]:
    weights = quantised(["gate_proj", "up_proj"], [96, 96])
    weights["up_proj.weight_scale"].view(torch.uint8)[3, 2] = 0xFF
    load(layer("gate_up"), weights, GATE_UP)
    return []


def infinite_scale_of_the_activation() -> list[float]:
    weights = quantised([name for name, _ in QKV], list(QKV_ROWS))
    weights["k_proj.pre_quant_scale"][0] = torch.inf
    load(layer("qkv"), weights, QKV)
    return []


def wrong_shape() -> list[float]:
    weights = quantised([name for name, _ in QKV], list(QKV_ROWS))
    weights["v_proj.weight_scale"] = weights["v_proj.weight_scale"][:, :4]
    load(layer("qkv"), weights, QKV)
    return []


def wrong_type() -> list[float]:
    weights = quantised(["gate_proj", "up_proj"], [96, 96])
    weights["gate_proj.weight"] = torch.zeros(96, IN, dtype=torch.bfloat16)
    load(layer("gate_up"), weights, GATE_UP)
    return []


def missing_tensor() -> list[float]:
    weights = quantised([name for name, _ in QKV], list(QKV_ROWS))
    del weights["k_proj.weight_scale_2"]
    load(layer("qkv"), weights, QKV)
    return []


def excluded_layers() -> list[float]:
    """Two layers that wildcards exclude, one of them by its parts, and one that none does: 1 where it is quantised."""
    config = configuration(ignore=EXCLUDED)
    at = "language_model.model.layers.5"
    names = ["visual.blocks.0.attn.qkv", f"{at}.linear_attn.in_proj_ba", f"{at}.self_attn.qkv_proj"]
    made = layer("qkv")
    return [float(type(config.get_quant_method(made, name)).__name__ == "Nvfp4AwqLinearMethod") for name in names]


def excluded_by_half() -> list[float]:
    config = configuration(ignore=["*.linear_attn.in_proj_a"])
    config.get_quant_method(layer("qkv"), "language_model.model.layers.5.linear_attn.in_proj_ba")
    return []


CASES: dict[str, Callable[[], list[float]]] = {
    case.__name__: case
    for case in (
        qkv_of_different_scales,
        gate_and_up_of_one_scale,
        gate_and_up_of_different_scales,
        gate_and_up_of_one_scale_and_two_peaks,
        gate_and_up_without_scales,
        one_tensor_for_three_parts,
        with_a_bias,
        traced_in_one_piece,
        folded_wrongly,
        nan_in_a_scale,
        infinite_scale_of_the_activation,
        wrong_shape,
        wrong_type,
        missing_tensor,
        excluded_layers,
        excluded_by_half,
    )
}


def shared_by_two() -> list[float]:
    """A row-parallel layer: each rank has half of the input channels, and of their scales."""
    torch.manual_seed(0)
    weights = quantised(["down_proj"], [64])
    made = layer("down")
    load(made, {name.removeprefix("down_proj"): tensor for name, tensor in weights.items()})
    return [error(made, weights, ["down_proj"]), float(made.awq_scale.numel())]


@contextmanager
def engine(rank: int, ranks: int, port: int) -> Iterator[None]:
    """What vLLM sets up before it makes a model: its configuration and the processes that share layers."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo" if DEVICE == "cpu" else "nccl"
        )
        initialize_model_parallel(ranks)
        yield


def answer(case: Callable[[], list[float]]) -> object:
    try:
        return case()
    except (ValueError, NotImplementedError) as refusal:
        return f"{type(refusal).__name__}: {refusal}"


def main(argv: list[str]) -> None:
    if argv[0].isdigit():
        with engine(int(argv[0]), 2, int(argv[1])):
            found = {"shared_by_two": answer(shared_by_two)}
    else:
        with engine(0, 1, free_port()):
            found = {name: answer(CASES[name]) for name in argv}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
