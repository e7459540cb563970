"""How one linear layer with NVFP4_AWQ weights is loaded and computed in vLLM. Importing it needs vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    QKVParallelLinear,
    register_weight_loader_v2_supported_method,
)

from dflash_deploy.serve.nvfp4.tensors import BadTensor, Shard, check_form, parts_of, runs

# Tensors that must be loaded: without them a layer would compute with uninitialised memory.
REQUIRED = ("weight", "weight_scale", "weight_scale_2", "input_scale")


@dataclass(frozen=True)
class Geometry:
    """A layer's sizes as vLLM gives them when it creates the tensors: of this tensor-parallel rank, unless `full`."""

    inputs: int
    outputs: tuple[int, ...]
    full_inputs: int
    full_outputs: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Part:
    """Adjacent outputs of a layer that one multiplication can compute, and vLLM's method for it."""

    layer: torch.nn.Module
    method: Any


@register_weight_loader_v2_supported_method
class Nvfp4AwqLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """vLLM's own NVFP4 method after a multiplication of the activation by `pre_quant_scale`.

    A fused layer (QKV, gate and up) gets one multiplication for all its parts only if they have the same
    `pre_quant_scale` and the same `weight_scale_2`; otherwise each run of equal neighbours becomes a separate layer.
    That is exact. One scale for parts that differ is not exact, nor is vLLM's largest `weight_scale_2` for all.
    """

    def __init__(self, make: Callable[[], Any], name_of: Callable[[Shard, int], str]) -> None:
        """`make` returns vLLM's method for this layer, `name_of` a part's name in the checkpoint."""
        self._make = make
        self._name_of = name_of
        self._inner = make()
        self._geometry: Geometry | None = None
        self._loaded: set[tuple[str, int]] = set()
        self._parts: list[Part] = []

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Make the tensors of NVFP4, and `pre_quant_scale` (parts, in) beside them."""
        self._geometry = Geometry(
            input_size_per_partition, tuple(output_partition_sizes), input_size, output_size, params_dtype
        )
        load = extra_weight_attrs["weight_loader"]

        def load_checked(parameter: torch.nn.Parameter, tensor: torch.Tensor, loaded_shard_id: Shard = None) -> None:
            name = next(key for key, value in layer.named_parameters(recurse=False) if value is parameter)
            self._check(layer, name, tensor, loaded_shard_id)
            load(parameter, tensor) if loaded_shard_id is None else load(parameter, tensor, loaded_shard_id)

        self._create(self._inner, layer, self._geometry.outputs, load_checked)
        # NaN: not in the checkpoint
        empty = torch.full((len(output_partition_sizes), input_size_per_partition), torch.nan, dtype=params_dtype)
        scale = torch.nn.Parameter(empty, requires_grad=False)

        def load_scale(parameter: torch.nn.Parameter, tensor: torch.Tensor, loaded_shard_id: Shard = None) -> None:
            self._check(layer, "pre_quant_scale", tensor, loaded_shard_id)
            if tensor.shape[0] != input_size_per_partition:
                # row parallel: each rank has its share of the input channels
                tensor = tensor.narrow(0, layer.tp_rank * input_size_per_partition, input_size_per_partition)
            parameter.data[list(parts_of(loaded_shard_id, len(output_partition_sizes)))] = tensor.to(parameter)

        scale.weight_loader = load_scale
        layer.register_parameter("pre_quant_scale", scale)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pass the layer, whole or in parts, to vLLM's method. Raises BadTensor if a tensor is missing."""
        self._refuse_missing(layer)
        scales = layer.pre_quant_scale.data
        scales = torch.where(scales.isnan(), torch.ones_like(scales), scales)
        del layer.pre_quant_scale
        found = runs(
            [(tuple(row.tolist()), second.item()) for row, second in zip(scales, layer.weight_scale_2, strict=True)]
        )
        if len(found) == 1:
            _set_scale(layer, scales[0])
            self._inner.process_weights_after_loading(layer)
            self._parts = [Part(layer, self._inner)]
        else:
            children = [self._split(layer, run, scales[run.start]) for run in found]
            for name in REQUIRED:
                if hasattr(layer, name):
                    delattr(layer, name)
            layer.nvfp4_awq_parts = torch.nn.ModuleList(child.layer for child in children)
            self._parts = children

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x` (..., in) through the layer: (..., out)."""
        if len(self._parts) == 1:
            return self._parts[0].method.apply(layer, _scaled(layer, x), bias)
        made = torch.cat([part.method.apply(part.layer, _scaled(part.layer, x)) for part in self._parts], dim=-1)
        return made if bias is None else made + bias

    def _create(self, method: Any, layer: torch.nn.Module, outputs: tuple[int, ...], load: Any) -> None:
        geometry = self._sizes
        method.create_weights(
            layer,
            geometry.inputs,
            list(outputs),
            geometry.full_inputs,
            geometry.full_outputs,
            geometry.dtype,
            weight_loader=load,
        )
        # the operation before the layer must not quantize its output: the scale must be applied first
        layer.__dict__.pop("_input_quant_key", None)

    def _split(self, layer: torch.nn.Module, run: range, scale: torch.Tensor) -> Part:
        """The parts of `run` as a separate layer, with vLLM's method for it."""
        outputs = self._sizes.outputs
        first = sum(outputs[: run.start])
        rows = slice(first, first + sum(outputs[run.start : run.stop]))
        child, method = torch.nn.Module(), self._make()
        # kernels read it; vLLM's linear layers have it
        child.params_dtype = self._sizes.dtype
        with torch.device(layer.weight.device):
            self._create(method, child, outputs[run.start : run.stop], None)
        for name, parameter in child.named_parameters():
            whole = getattr(layer, name).data
            parameter.data = whole[slice(run.start, run.stop) if whole.dim() == 1 else rows].clone()
        _set_scale(child, scale)
        method.process_weights_after_loading(child)
        return Part(child, method)

    @property
    def _sizes(self) -> Geometry:
        if self._geometry is None:
            raise RuntimeError("create_weights comes first")
        return self._geometry

    def _check(self, layer: torch.nn.Module, tensor_name: str, tensor: torch.Tensor, shard: Shard) -> None:
        """Raises BadTensor for a tensor that does not fit the layer, before vLLM's loader splits it."""
        sizes = self._sizes
        name = f"{self._name_of(shard, len(sizes.outputs))}.{tensor_name}"
        check_form(
            name,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            rows=_rows(layer, sizes, shard),
            columns=sizes.full_inputs,
        )
        if tensor.dtype == torch.float8_e4m3fn:
            # E4M3 has no infinity, and one NaN of each sign
            bad = bool(((tensor.view(torch.uint8) & 0x7F) == 0x7F).any())
        else:
            bad = tensor.is_floating_point() and not bool(tensor.isfinite().all())
        if bad:
            raise BadTensor(name, "holds NaN or infinity")
        self._loaded.update((tensor_name, part) for part in parts_of(shard, len(sizes.outputs)))

    def _refuse_missing(self, layer: torch.nn.Module) -> None:
        # without any tensor the weights do not come from a checkpoint, as with --load-format dummy
        if not self._loaded:
            return
        count = len(self._sizes.outputs)
        for name, part in product((name for name in REQUIRED if hasattr(layer, name)), range(count)):
            if (name, part) not in self._loaded:
                raise BadTensor(f"{self._name_of(part if count > 1 else None, count)}.{name}", "is missing")


def _rows(layer: torch.nn.Module, sizes: Geometry, shard: Shard) -> int | None:
    """How many rows a tensor of this shard has in the checkpoint; `None` if the layer does not know."""
    if isinstance(layer, QKVParallelLinear):
        # output_sizes would count heads that several ranks share more than once
        heads = (
            layer.total_num_heads * layer.head_size,
            layer.total_num_kv_heads * layer.head_size,
            layer.total_num_kv_heads * layer.v_head_size,
        )
        return int(sum(heads[part] for part in parts_of(shard, len(heads))))
    if not isinstance(layer, LinearBase):
        # an output head pads its vocabulary
        return None
    if len(sizes.outputs) == 1:
        return sizes.full_outputs
    return int(sum(layer.output_sizes[part] for part in parts_of(shard, len(sizes.outputs))))


def _set_scale(layer: torch.nn.Module, scale: torch.Tensor) -> None:
    """Keep the scale with the layer, so that it moves with it; `None` if all its values are 1."""
    layer.awq_scale = None if bool((scale == 1).all()) else torch.nn.Parameter(scale.clone(), requires_grad=False)


def _scaled(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x if layer.awq_scale is None else x * layer.awq_scale
