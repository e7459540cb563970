"""vLLM's configuration of ModelOpt's NVFP4, extended to NVFP4_AWQ. Importing it needs vLLM."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.platforms import current_platform

from dflash_deploy.serve.nvfp4.metadata import ALGORITHM, as_nvfp4, states_awq
from dflash_deploy.serve.nvfp4.method import Nvfp4AwqLinearMethod
from dflash_deploy.serve.nvfp4.tensors import Shard, module_name, original_prefix

# vLLM's name of the method for NVFP4. It is kept because parts of vLLM compare it: models that do not quantize their
# MTP head, the choice of fusions, `--quantization`.
METHOD = "modelopt_fp4"


@register_quantization_config(METHOD)
class Nvfp4AwqConfig(ModelOptNvFp4Config):  # type: ignore[misc]
    """NVFP4 with a scale for the activation before each linear layer.

    vLLM's class decides, as for NVFP4, which layers are quantized, the KV cache's type and the kernels.
    """

    renamed: dict[str, str | None]
    """Prefixes of names in the checkpoint and vLLM's prefixes for them, if the model renames them."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelOptNvFp4Config:
        """The configuration from either layout of the metadata; vLLM's own class for any other NVFP4 checkpoint."""
        if not states_awq(config):
            return ModelOptNvFp4Config.from_config(config)
        return super().from_config(as_nvfp4(config))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Translate the excluded modules to vLLM's names, and keep the original names for messages."""
        self.renamed = dict(getattr(hf_to_vllm_mapper, "orig_to_new_prefix", {}))
        super().apply_vllm_mapper(hf_to_vllm_mapper)

    def is_layer_excluded(self, prefix: str) -> bool:
        """Whether vLLM's class excludes the layer, or each of its parts: a wildcard may name parts of a fused layer.

        Raises ValueError where some parts are excluded and some are not: one layer cannot be both.
        """
        if super().is_layer_excluded(prefix):
            return True
        parent, _, last = prefix.rpartition(".")
        parts = [f"{parent}.{part}" for part in self.packed_modules_mapping.get(last, [])]
        excluded = [part for part in parts if super(Nvfp4AwqConfig, self).is_layer_excluded(part)]
        if excluded and len(excluded) < len(parts):
            raise ValueError(f"{prefix}: {', '.join(excluded)} excluded from {ALGORITHM} without the rest of the layer")
        return bool(excluded)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The method for one layer; `None` or an unquantized method if vLLM's class decides so.

        Raises NotImplementedError for a mixture of experts: its kernels take one activation for all.
        """
        if current_platform.is_cpu():
            from dflash_deploy.serve.nvfp4.reference import register_reference

            register_reference()
        method = super().get_quant_method(layer, prefix)
        if isinstance(method, self.FusedMoEMethodCls):
            raise NotImplementedError(f"{prefix}: {ALGORITHM} is loaded for linear layers, not for mixtures of experts")
        if isinstance(method, UnquantizedLinearMethod) or not isinstance(method, LinearMethodBase):
            return method
        make = super().get_quant_method

        def name_of(shard: Shard, count: int) -> str:
            parts = self.packed_modules_mapping.get(prefix.rpartition(".")[2], [])
            return original_prefix(module_name(prefix, parts, shard, count), getattr(self, "renamed", {}))

        return Nvfp4AwqLinearMethod(lambda: make(layer, prefix), name_of)
