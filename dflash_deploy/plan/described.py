"""A catalog entry for a model that the catalog does not have, made from its own metadata.

Pure: a config.json or a GGUF header in, a `Family` out. Keys of config.json are those of transformers 5; keys of a GGUF
those of ggml's docs/gguf.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic import ValidationError

from dflash_deploy.catalog.load import load_dialects
from dflash_deploy.catalog.models import Dialect, Drafter, Family, Target
from dflash_deploy.catalog.read import Quantisation
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.model_metadata import LARGEST, ModelMetadata, metadata_of, nested

Node = Mapping[str, object]

# Architectures of draft models.
DRAFTERS = frozenset({"DFlashDraftModel", "DFlash2DraftModel", "dflash", "dflash-draft"})

LATENT = ("kv_lora_rank", "qk_rope_head_dim")

# The kinds of layers whose memory is known, by their names in LAYER_LISTS. Layers `moe` and `mlp` keep nothing.
LAYER_KINDS = {
    **dict.fromkeys(("full_attention", "attention", "deepseek_sparse_attention", "*", "0"), "full"),
    **dict.fromkeys(("sliding_attention", "chunked_attention", "1"), "sliding"),
    # Mamba 2 keeps a state of the same form: its groups are key heads
    **dict.fromkeys(("linear_attention", "mamba", "M"), "linear"),
    **dict.fromkeys(("moe", "E"), "moe"),
    **dict.fromkeys(("mlp", "-"), "mlp"),
}

# Keys with the kind of each layer: of transformers, of Nemotron-H (two forms) and of MiMo.
LAYER_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern", "hybrid_layer_pattern")

# Keys of layers whose memory is not known, unless a list has their kinds.
NOT_COUNTED = ("compress_ratios", "block_configs", "linear_attn_config", "attn_layer_period", "mamba_d_state")

WIDE = ("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
SHARED = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Names that families have for the width of a dense layer and of shared experts, and for the numbers of experts.
USED = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_k")

# Values that published config.json files leave out, as in transformers' classes.
DEFAULTS: Mapping[str, Node] = {
    "gemma3": {
        "vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "sliding_window_pattern": 6,
    }
}  # fmt: skip

# The draft model of a target that has none: its numbers are never used.
NO_DRAFTER = {"path": "/", "bytes": 1, "absent": True, "block_size": 2, "layers": 1}


@dataclass(frozen=True)
class FoundModel:
    """Weights that were found, and what they say about themselves.

    `place` has the keys of a catalog entry: `repo` and `revision`, or `path`; `file`, `projector`, `licence`, `gated`.
    `node` is config.json or the GGUF header, `size` the weights in bytes. `notes` tell what contradicts config.json.
    """

    name: str
    place: Mapping[str, Any]
    node: Node
    size: int
    template: str = ""
    notes: tuple[str, ...] = ()

    @property
    def metadata(self) -> ModelMetadata:
        """What target and draft model must agree on."""
        return metadata_of(self.node)

    @property
    def drafts(self) -> bool:
        """Whether it is a draft model."""
        return self.metadata.architecture in DRAFTERS


def describe(target: FoundModel, drafter: FoundModel | None) -> Family:
    """The entry of a target, with a draft model or without one. Raises NotPossible with the reason."""
    if target.drafts:
        raise NotPossible(
            f"{target.name} is a draft model: it proposes tokens and cannot answer by itself",
            hint=f"name its target with --model, and this one with --drafter {target.name}",
        )
    node = _as_config(target.node)
    dialect = dialect_of(target.template)
    name = re.sub(r"[^a-z0-9.]+", "-", target.name.lower()).strip("-.")[:80] or "model"
    try:
        entry = Target(
            **target.place,
            name=name,
            title=f"{target.name} (not in the catalog: read from its headers, untested)",
            bytes=target.size,
            source="its headers",
            quantisation=quantisation_of(target),
            served_name=re.sub(r"[^\w.-]", "-", target.name)[:80],
            notice="; ".join(target.notes),
        )
        return Family(
            name=name,
            title=target.name,
            shape=shape_of(node, target.name),
            drafter=Drafter(**NO_DRAFTER) if drafter is None else drafter_of(drafter, target.metadata, target.name),
            targets=[entry],
            unknown=True,
            thinking=_thinking(dialect, target.template),
            reasoning_parser=dialect.reasoning,
            tool_call_parser=dialect.tools,
            source="config.json or GGUF header, and the chat template",
        )
    except ValidationError as problem:
        error = problem.errors()[0]
        where = ".".join(map(str, error["loc"]))
        raise NotPossible(
            f"the headers of {target.name} do not describe a model: {where} {error['msg']}",
            hint="check its config.json, or download it again",
        ) from None


def dialect_of(template: str) -> Dialect:
    """The parsers for a chat template; none if its format is not known."""
    rows = (row for row in load_dialects() if all(mark in template for mark in row.marks))
    return next(rows, Dialect(marks=["-"]))


def _thinking(dialect: Dialect, template: str) -> str:
    if dialect.reasoning is None:
        return "none"
    return "on" if re.search(r"\b(enable_thinking|thinking)\b", template) else "always"


# The catalog's names for `quant_method` of config.json, followed by ModelOpt's `quant_algo` or the `format`.
METHODS: Mapping[str, Quantisation] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "awq": "int4-awq",
    "gptq": "int4-gptq",
    "auto-round": "int4-autoround",
    "bitsandbytes": "bitsandbytes",
    "quark": "quark",
    "torchao": "torchao",
    **dict.fromkeys(("modelopt FP8", "modelopt FP8_PER_CHANNEL_PER_TOKEN", "modelopt FP8_PB_WO"), "fp8"),
    "modelopt MXFP8": "mxfp8",
    "modelopt NVFP4": "nvfp4-modelopt",
    "modelopt W4A16_NVFP4": "nvfp4-modelopt",
    "modelopt NVFP4_AWQ": "nvfp4-awq",
    "modelopt MIXED_PRECISION": "mixed-modelopt",
    "compressed-tensors nvfp4-pack-quantized": "nvfp4-compressed-tensors",
    "compressed-tensors mxfp4-pack-quantized": "mxfp4-compressed-tensors",
    **dict.fromkeys(("compressed-tensors float-quantized", "compressed-tensors naive-quantized"), "fp8"),
    "compressed-tensors pack-quantized": "int4-compressed-tensors",
    "compressed-tensors int-quantized": "int8-compressed-tensors",
}


def quantisation_of(model: FoundModel) -> Quantisation:
    """How the weights are stored, in the catalog's names. Raises NotPossible for another way."""
    if "general.architecture" in model.node:
        return "gguf"
    config = nested(model.node, "quantization_config") or nested(model.node, "compression_config")
    if not isinstance(config, Mapping):
        return "bf16"
    algorithm, stored = str(config.get("quant_algo", "")), str(config.get("format", ""))
    method = str(config.get("quant_method") or ("modelopt" if algorithm else ""))
    names = (method, f"{method} {algorithm.upper()}", f"{method} {stored}")
    if known := next((METHODS[name] for name in names if name in METHODS), None):
        return known
    said = " ".join(filter(None, (method, algorithm, stored)))
    raise NotPossible(
        f"the weights of {model.name} are quantized with {said[:80] or 'an unnamed method'}, which no engine of "
        "the catalog is known to load",
        hint="choose another quantization of the model, such as BF16, FP8, NVFP4, AWQ, GPTQ or GGUF",
    )


def drafter_of(drafter: FoundModel, target: ModelMetadata, name: str) -> Drafter:
    """The entry of a draft model. Raises NotPossible if it is none, or was made for another target."""
    if not drafter.drafts:
        raise NotPossible(
            f"{drafter.name} is not a DFlash draft model: its architecture is {drafter.metadata.architecture}",
            hint="name a DFlash draft model of this target, or serve without one: --drafter off",
        )
    if problem := mismatch(target, drafter.metadata):
        raise NotPossible(f"{drafter.name} does not belong to {name}: {problem}", hint="or use --drafter off")
    node = _as_config(drafter.node)
    kinds = set(_layer_types(node, _int(node, "num_hidden_layers") or 1))
    window = _int(node, "sliding_window") if "sliding" in kinds else None
    quantized = "general.architecture" not in drafter.node and isinstance(
        nested(drafter.node, "quantization_config"), Mapping
    )
    return Drafter(
        **drafter.place,
        bytes=drafter.size,
        source="its headers",
        architecture=drafter.metadata.architecture,
        block_size=drafter.metadata.block_size or 0,
        layers=drafter.metadata.layers or 0,
        hidden_size=drafter.metadata.hidden_size,
        kv_heads=_int(node, "num_key_value_heads") or 8,
        head_dim=_heads(node, "full")[2],
        target_layer_ids=_read_layers(node),
        layer_types="mixed" if len(kinds) > 1 else "sliding" if kinds == {"sliding"} else "full",
        window=window,
        quantised=quantized,
    )


def _read_layers(node: Node) -> list[int]:
    found = nested(node, "dflash_config", "target_layer_ids") or nested(node, "aux_hidden_state_layer_ids")
    return [one for one in found if isinstance(one, int)] if isinstance(found, list | tuple) else []


def mismatch(target: ModelMetadata, drafter: ModelMetadata) -> str:
    """What a draft model and a target contradict each other in, in words; empty if they fit."""
    if drafter.hidden_size and drafter.hidden_size != target.hidden_size:
        return f"it was made for a hidden size of {drafter.hidden_size}, the target has {target.hidden_size}"
    if target.layers and drafter.deepest_layer is not None and drafter.deepest_layer >= target.layers:
        return f"it reads layer {drafter.deepest_layer} of a target that has {target.layers}"
    if target.vocabulary and drafter.vocabulary and abs(target.vocabulary - drafter.vocabulary) > 1024:
        return f"it has a vocabulary of {drafter.vocabulary}, the target of {target.vocabulary}"
    return "" if drafter.block_size else "it does not say its block size"


def shape_of(node: Node, name: str) -> dict[str, Any]:
    """The shape of a target, as the catalog writes it. Raises NotPossible if its layers are not understood."""
    layers, hidden = _int(node, "num_hidden_layers") or len(_listed(node)), _int(node, "hidden_size")
    vocabulary, context = _int(node, "vocab_size"), _int(node, "max_position_embeddings")
    lacking = [
        key
        for key, value in (
            ("num_hidden_layers", layers),
            ("hidden_size", hidden),
            ("vocab_size", vocabulary),
            ("max_position_embeddings", context),
        )
        if not value
    ]
    if lacking:
        raise NotPossible(
            f"the config.json of {name} does not say {', '.join(lacking)}", hint="is it a language model?"
        )
    kinds = _layer_types(node, layers)
    if unknown := sorted(set(kinds) - set(LAYER_KINDS.values())):
        raise NotPossible(
            f"{name} has layers of the kind {unknown[0][:60]}, whose memory is not known",
            hint="describe it in a custom catalog: docs/reference/catalog",
        )
    experts, parameters, active = _parameters(node, kinds)
    vision = _vision_parameters(nested(node, "vision_config"))
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden_size": hidden,
        "vocabulary": vocabulary,
        "context": context,
        "parameters": parameters + vision,
        "vision_parameters": vision,
        "attention_needs": list(_needs(node, vision)),
        **_attention(node, kinds),
    }
    if experts:
        shape |= {"experts": experts, "active_parameters": active + vision}
    return shape


def _attention(node: Node, kinds: Sequence[str]) -> dict[str, Any]:
    heads, kv_heads, head_dim = _heads(node, "full")
    found: dict[str, Any] = {}
    full, sliding, linear = (kinds.count(kind) for kind in ("full", "sliding", "linear"))
    if rank := _int(node, LATENT[0]):
        # the key of a sparse attention's indexer: FP8, and a scale of 4 bytes (vLLM, DeepseekV32IndexerCache)
        index = (_int(node, "index_head_dim") + 4) // 2 if _int(node, "index_head_dim") else 0
        found["latent_attention"] = {"layers": full, "heads": heads, "width": rank + _int(node, LATENT[1]) + index}
    elif full:
        found["full_attention"] = {"layers": full, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if sliding:
        heads, kv_heads, head_dim = _heads(node, "sliding")
        window = _int(node, "sliding_window", "attention_chunk_size", "max_position_embeddings")
        plain = {"layers": sliding, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
        found["sliding_attention"] = plain
    if linear:
        found["linear_attention"] = {"layers": linear, **_recurrent(node)}
    return found


def _heads(node: Node, kind: str) -> tuple[int, int, int]:
    """Heads, KV heads and their size in layers with full or sliding attention, which Gemma 4 and MiMo distinguish."""
    heads = _int(node, "num_attention_heads") or 1
    mark = {"full": ("num_global_key_value_heads", "global_head_dim")}.get(
        kind, ("swa_num_key_value_heads", "swa_head_dim")
    )
    size = _int(node, mark[1], "head_dim") or max(_int(node, "hidden_size") // heads, 1)
    return heads, _int(node, mark[0], "num_key_value_heads") or heads, size


def _recurrent(node: Node) -> dict[str, int]:
    """Recurrent layers: of a gated delta net, else of Mamba 2 as Nemotron-H and Granite name its numbers."""
    return {
        "key_heads": _int(node, "linear_num_key_heads", "n_groups", "mamba_n_groups"),
        "value_heads": _int(node, "linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"),
        "key_dim": _int(node, "linear_key_head_dim", "ssm_state_size", "mamba_d_state"),
        "value_dim": _int(node, "linear_value_head_dim", "mamba_head_dim", "mamba_d_head"),
        "conv_kernel": _int(node, "linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv") or 4,
    }


def _kind(node: Node) -> str:
    """The name of the family in config.json; of the model with its vision tower if it has one."""
    return str(node.get("model_type") or nested(node, "model_type"))


def _needs(node: Node, vision: int) -> list[str]:
    marks = {
        "sinks": "gpt_oss" in str(nested(node, "model_type")) or nested(node, "add_swa_attention_sink_bias") is True,
        "latent": bool(_int(node, LATENT[0])),
        "image-prefix": bool(vision) and _kind(node).startswith(("gemma3", "gemma4")),
    }
    return [name for name, needed in marks.items() if needed]


def _listed(node: Node) -> Sequence[object]:
    """The kinds of the layers, by one of LAYER_LISTS; empty if none has them."""
    found = (nested(node, key) for key in LAYER_LISTS)
    return next((one for one in found if isinstance(one, list | str) and one), ())


def _layer_types(node: Node, layers: int) -> list[str]:
    """The kind of each layer: a value of LAYER_KINDS, or the name of one that is not known."""
    if listed := _listed(node):
        kinds = [LAYER_KINDS.get(str(one), str(one)) for one in listed[:layers]]
        return kinds + ["that the list of layers does not have"] * (layers - len(kinds))
    if unknown := [key for key in NOT_COUNTED if nested(node, key)]:
        return unknown[:1] * layers
    if (every := _int(node, "full_attention_interval")) and _int(node, "linear_num_value_heads"):
        return ["linear" if (layer + 1) % every else "full" for layer in range(layers)]
    chunk = _int(node, "attention_chunk_size")
    if not (_int(node, "sliding_window") or chunk) or nested(node, "use_sliding_window") is False:
        return ["full"] * layers
    # Llama 4: every fourth layer has full attention
    every = _int(node, "sliding_window_pattern", "no_rope_layer_interval") or (4 if chunk else 0)
    return ["sliding" if not every or (layer + 1) % every else "full" for layer in range(layers)]


def _parameters(node: Node, kinds: Sequence[str]) -> tuple[tuple[int, int] | None, int, int]:
    """Experts and their number per token, all parameters, and those that a token uses, without the vision tower.

    Norms and biases are left out: less than a thousandth.
    """
    hidden = _int(node, "hidden_size")
    # relu2 has no gate
    matrices = 2 if nested(node, "mlp_hidden_act") == "relu2" else 3
    embedding = _int(node, "vocab_size") * hidden * (1 if _tied(node) else 2)
    common = embedding + sum(_attention_parameters(node, kind) for kind in kinds)
    count, used = _int(node, *EXPERTS), _int(node, *USED)
    sparse = _sparse(node, kinds) if count and 0 < used < count else [False] * len(kinds)
    dense = kinds.count("mlp") if {"moe", "mlp"} & set(kinds) else sparse.count(False)
    common += dense * matrices * hidden * _int(node, *WIDE)
    if not any(sparse):
        return None, common, common
    narrow = _int(node, "moe_intermediate_size", "intermediate_size")
    inner = _int(node, "moe_latent_size") or hidden
    shared = _int(node, *SHARED) or _int(node, "n_shared_experts", "moe_num_shared_experts") * narrow
    kind = _kind(node)
    if kind.startswith("llama4"):
        shared = narrow
    elif kind.startswith("gemma4"):
        shared = _int(node, "intermediate_size")
    layer = matrices * hidden * shared + hidden * count + (2 * hidden * inner if inner != hidden else 0)
    common, expert = common + sum(sparse) * layer, sum(sparse) * matrices * inner * narrow
    return (count, used), common + count * expert, common + used * expert


def _sparse(node: Node, kinds: Sequence[str]) -> list[bool]:
    """Which layers have experts."""
    if "moe" in kinds:
        return [kind == "moe" for kind in kinds]
    for key in ("mlp_layer_types", "moe_layer_freq"):
        listed = nested(node, key)
        if isinstance(listed, list) and len(listed) >= len(kinds):
            return [one in ("sparse", 1) for one in listed[: len(kinds)]]
    first = _int(node, "first_k_dense_replace", "moe_layer_start_index")
    every = _int(node, "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval") or 1
    return [layer >= first and not (layer + 1) % every for layer in range(len(kinds))]


def _tied(node: Node) -> bool:
    said = node.get("tie_word_embeddings", nested(node, "tie_word_embeddings"))
    if said is None:
        # transformers: Gemma's default; others are false
        return _kind(node).startswith("gemma")
    return bool(said)


def _attention_parameters(node: Node, kind: str) -> int:
    hidden = _int(node, "hidden_size")
    if kind in ("moe", "mlp"):
        return 0
    if kind == "linear":
        one = _recurrent(node)
        return hidden * (2 * one["key_heads"] * one["key_dim"] + 3 * one["value_heads"] * one["value_dim"])
    heads, kv_heads, head_dim = _heads(node, kind)
    if rank := _int(node, LATENT[0]):
        rope, nope = _int(node, LATENT[1]), _int(node, "qk_nope_head_dim")
        value, query = _int(node, "v_head_dim"), heads * (nope + rope)
        low = _int(node, "q_lora_rank")
        queries = low * (hidden + query) if low else hidden * query
        return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    gate = heads if nested(node, "attn_output_gate") is True else 0
    return hidden * head_dim * (2 * heads + 2 * kv_heads + gate)


def _vision_parameters(vision: object) -> int:
    """Parameters of the vision tower, of its layers only; at least 1 if there is one."""
    if not isinstance(vision, Mapping):
        return 0
    depth = _int(vision, "depth", "num_hidden_layers", "vt_num_hidden_layers")
    hidden = _int(vision, "hidden_size", "vt_hidden_size")
    wide = _int(vision, "intermediate_size", "vt_intermediate_size") or 4 * hidden
    return max(depth * (4 * hidden * hidden + 2 * hidden * wide), 1)


def _as_config(node: Node) -> Node:
    """A GGUF header in the keys of config.json; a config.json as it is."""
    kind = node.get("general.architecture")
    if not isinstance(kind, str):
        more = next((values for family, values in DEFAULTS.items() if _kind(node).startswith(family)), {})
        inner = node.get("text_config")
        return {**node, "text_config": {**more, **(inner if isinstance(inner, Mapping) else node)}} if more else node
    keys = {
        "num_hidden_layers": "block_count", "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length", "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
        "sliding_window": "attention.sliding_window", "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "first_k_dense_replace": "leading_dense_block_count", "full_attention_interval": "full_attention_interval",
        "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank",
        "linear_key_head_dim": "ssm.state_size", "linear_conv_kernel_dim": "ssm.conv_kernel",
        "kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank",
        "num_nextn_predict_layers": "nextn_predict_layers",
    }  # fmt: skip
    config: dict[str, object] = {name: node.get(f"{kind}.{key}") for name, key in keys.items()}
    config = {name: max(value) if isinstance(value, tuple) and value else value for name, value in config.items()}
    config |= {"model_type": kind.replace("-", "_"), "vocab_size": metadata_of(node).vocabulary}
    config |= {key: node.get(key) for key in ("vision_config", "tie_word_embeddings")}
    if inner := node.get(f"{kind}.ssm.inner_size"):
        config["linear_value_head_dim"] = _int({"n": inner}, "n") // (_int(config, "linear_num_value_heads") or 1)
    if config["kv_lora_rank"]:
        config["qk_rope_head_dim"] = node.get(f"{kind}.rope.dimension_count")
    # the layers of an MTP head are counted, and are none of the target's
    config["num_hidden_layers"] = _int(config, "num_hidden_layers") - _int(config, "num_nextn_predict_layers")
    pattern = node.get(f"{kind}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        config["layer_types"] = ["sliding_attention" if one else "full_attention" for one in pattern]
    deepest = node.get(f"{kind}.target_layers") or node.get(f"{kind}.dflash.target_layer_ids")
    if isinstance(deepest, tuple):
        offset = 1 if f"{kind}.target_layers" in node else 0
        config["aux_hidden_state_layer_ids"] = [one - offset for one in deepest if isinstance(one, int)]
    return {name: value for name, value in config.items() if value is not None}


def _int(node: Node, *keys: str) -> int:
    """The first of the keys with a whole number above 0; 0 if none has one."""
    values = (nested(node, key) for key in keys)
    return next((one for one in values if _whole(one) and one), 0)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
