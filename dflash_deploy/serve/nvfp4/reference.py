"""NVFP4 on CPUs, for which vLLM has no kernel: the weights are converted to float32 and multiplied.

For tests and for the inspection of a checkpoint, not for speed: each weight takes four bytes, and the activation is not
rounded to four bits (vLLM's Marlin kernel does not round it either).
"""

from __future__ import annotations

import torch
from vllm.model_executor.kernels.linear import NvFp4LinearKernel, NvFp4LinearLayerConfig, register_linear_kernel
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum

from dflash_deploy.serve.nvfp4.metadata import GROUP

# The numbers of two exponent bits and one mantissa bit; the fourth bit is the sign (OCP Microscaling Formats 1.0).
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(weight: torch.Tensor, weight_scale: torch.Tensor, weight_scale_2: torch.Tensor) -> torch.Tensor:
    """The weights as float32 (out, in), from (out, in / 2) bytes, (out, in / 16) FP8 scales and a scalar."""
    signed = torch.tensor([*E2M1, *(-number for number in E2M1)], dtype=torch.float32, device=weight.device)
    codes = torch.stack((weight & 0x0F, weight >> 4), dim=-1).flatten(-2)
    scales = (weight_scale.float() * weight_scale_2.float()).repeat_interleave(GROUP, dim=-1)
    return signed[codes.long()] * scales


class DequantisingKernel(NvFp4LinearKernel):  # type: ignore[misc]
    """A kernel in vLLM's sense: it multiplies an activation by the weights of a loaded layer."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Only on CPUs."""
        return (True, None) if current_platform.is_cpu() else (False, "for processors")

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:
        """Every layer."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Convert the weights to float32, once."""
        numbers = dequantise(layer.weight.data, layer.weight_scale.data, layer.weight_global_scale.data)
        del layer.weight, layer.weight_scale
        layer.weight = torch.nn.Parameter(numbers, requires_grad=False)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x` (..., in) times the weights, in float32, in the type of `x`."""
        made = torch.nn.functional.linear(x.float(), layer.weight, None if bias is None else bias.float())
        return made.to(x.dtype)


_registered: list[type] = []


def register_reference() -> None:
    """Register the kernel with vLLM for CPUs. Further calls do nothing."""
    if not _registered:
        register_linear_kernel(DequantisingKernel, PlatformEnum.CPU, "nvfp4")
        _registered.append(DequantisingKernel)
