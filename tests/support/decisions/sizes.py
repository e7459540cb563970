"""How vLLM 0.33.0 divides a KV cache: its own specs, groups and pool for the layers of target and drafter.

The layers have no weights; they state their backend and shape, and vLLM's own `get_kv_cache_spec` makes their spec.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from dflash_deploy.serve.engines.vllm_question import as_drafter


def sizes(config: Any) -> dict[str, int]:
    """Bytes of one block of the pool, the blocks that a sequence of the full length takes, and the tokens of a block.

    `config` keeps what it learns about blocks.
    """
    context = config.compilation_config.static_forward_context
    context.update(_target(config))
    if config.speculative_config is not None:
        context.update(_attention(as_drafter(config), config.speculative_config.draft_model_config, "draft"))
    platforms: Any = importlib.import_module("vllm.platforms")
    platforms.current_platform.update_block_size_for_backend(config)
    base = _of("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase")
    layers = _of("vllm.config.vllm", "get_layers_from_vllm_config")(config, base)
    with _of("vllm.config", "set_current_vllm_config")(config):
        specs = {name: layer.get_kv_cache_spec(config) for name, layer in layers.items()}
    utilities: Any = importlib.import_module("vllm.v1.attention.backends.utils")
    planning: Any = importlib.import_module("vllm.v1.core.kv_cache_planning")
    backends = dict.fromkeys(layer.get_attn_backend() for layer in layers.values())
    layouts = [layout.name for layout in utilities.get_supported_kv_cache_layouts(backends)]
    layout = utilities.resolve_kv_cache_layout(config, [layouts], specs.values())
    groups = planning.get_global_kv_cache_groups(config, [specs])
    blocks = 1_000_000
    concurrency = _of("vllm.v1.core.kv_cache_utils", "get_max_concurrency_for_kv_cache_config")(
        config, SimpleNamespace(num_blocks=blocks, kv_cache_groups=groups)
    )
    return {
        "block_bytes": planning._get_kv_cache_bytes_per_block(groups, layout),
        "blocks_per_sequence": round(blocks / concurrency),
        "groups": len(groups),
        "block_size": config.cache_config.block_size,
        "in_flight_tokens": config.max_in_flight_tokens,
    }


def _target(config: Any) -> dict[str, Any]:
    model = config.model_config
    found = _attention(config, model, "target")
    if model.is_hybrid:
        kinds = model.hf_text_config.layer_types
        found |= {f"target.{index}": _state(config) for index, kind in enumerate(kinds) if kind == "linear_attention"}
    return found


def _state(config: Any) -> Any:
    """A layer with a recurrent state, whose shape the model's own class names."""
    model = config.model_config
    registry = _of("vllm.model_executor.models", "ModelRegistry")
    kind, _ = registry.resolve_model_cls(model.architecture, model_config=model)
    base = _of("vllm.model_executor.layers.mamba.abstract", "MambaBase")
    backends = _of("vllm.v1.attention.backends.registry", "MambaAttentionBackendEnum")
    members = {
        "get_state_shape": lambda _: kind.get_mamba_state_shape_from_config(config),
        "get_state_dtype": lambda _: kind.get_mamba_state_dtype_from_config(config),
        "mamba_type": backends.GDN_ATTN,
    }
    return type("State", (base,), members)()


def _attention(config: Any, model: Any, role: str) -> dict[str, Any]:
    return {f"{role}.{index}": layer for index, layer in _layers(config, model, role)}


def _layers(config: Any, model: Any, role: str) -> Iterator[tuple[int, Any]]:
    """The layers with attention of one model, each as vLLM's class would describe itself."""
    text = model.hf_text_config
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    attention = _of("vllm.model_executor.layers.attention.attention", "Attention")
    latent = _of("vllm.model_executor.layers.attention.mla_attention", "MLAAttention")
    base = _of("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase")
    decoder = _of("vllm.v1.attention.backend", "AttentionType").DECODER
    select = _of("vllm.v1.attention.selector", "get_attn_backend")
    to_torch = _of("vllm.utils.torch_utils", "kv_cache_dtype_str_to_dtype")
    written = config.cache_config.cache_dtype
    for index, kind in enumerate(kinds):
        if kind == "linear_attention":
            continue
        shape = model.model_arch_config[index]
        sliding = kind == "sliding_attention"
        with _of("vllm.config", "set_current_vllm_config")(config):
            backend = select(
                shape.head_size,
                model.dtype,
                written,
                use_mla=model.use_mla,
                has_sink="gpt_oss" in text.model_type,
                use_mm_prefix=bool(model.is_mm_prefix_lm),
                num_heads=model.get_num_attention_heads(config.parallel_config),
                has_sliding_window=sliding,
            )
        made = (latent if model.use_mla else attention).get_kv_cache_spec
        members = {"get_attn_backend": lambda layer: layer.attn_backend, "get_kv_cache_spec": made}
        layer: Any = type("Layer", (base,), members)()
        layer.attn_backend = backend
        layer.attn_type = decoder
        layer.kv_cache_dtype = written
        layer.kv_cache_torch_dtype = to_torch(written, model)
        layer.head_size = layer.head_size_v = shape.head_size
        layer.num_kv_heads = model.get_num_kv_heads(config.parallel_config, shape)
        layer.sliding_window = text.sliding_window if sliding else None
        layer.topk_buffer_width = layer.indexer = None
        layer.non_causal_multi_token_decode = False
        yield index, layer


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
