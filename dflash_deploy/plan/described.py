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
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.model_metadata import LARGEST, ModelMetadata, metadata_of, nested

Node = Mapping[str, object]

DRAFTERS = frozenset({"DFlashDraftModel", "DFlash2DraftModel", "dflash", "dflash-draft"})
"""Architectures of draft models."""

LATENT = ("kv_lora_rank", "qk_rope_head_dim")

LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
}
"""The kinds of layers whose memory is known, by transformers' names."""

NO_DRAFTER = {"path": "/", "bytes": 1, "absent": True, "block_size": 2, "layers": 1}
"""The draft model of a target that has none: its numbers are never used."""


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
    name = _slug(target.name)
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


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:80] or "model"


def dialect_of(template: str) -> Dialect:
    """The parsers for a chat template; none if its format is not known."""
    rows = (row for row in load_dialects() if all(mark in template for mark in row.marks))
    return next(rows, Dialect(marks=["-"]))


def _thinking(dialect: Dialect, template: str) -> str:
    if dialect.reasoning is None:
        return "none"
    return "on" if re.search(r"\b(enable_thinking|thinking)\b", template) else "always"


def quantisation_of(model: FoundModel) -> str:
    """How the weights are stored, in the catalog's names. Raises NotPossible for another way."""
    if "general.architecture" in model.node:
        return "gguf"
    config = nested(model.node, "quantization_config") or nested(model.node, "compression_config")
    if not isinstance(config, Mapping):
        return "bf16"
    method, algorithm = str(config.get("quant_method", "")), str(config.get("quant_algo", ""))
    known = {
        "fp8": "fp8",
        "fbgemm_fp8": "fp8",
        "mxfp4": "mxfp4",
        "awq": "int4-awq",
        "auto-round": "int4-autoround",
        "modelopt": {"FP8": "fp8", "NVFP4": "nvfp4-modelopt", "NVFP4_AWQ": "nvfp4-awq"}.get(algorithm, ""),
        "compressed-tensors": {
            "nvfp4-pack-quantized": "nvfp4-compressed-tensors",
            "float-quantized": "fp8",
        }.get(str(config.get("format", "")), ""),
    }.get(method, "")
    if not known:
        said = " ".join(filter(None, (method, algorithm, str(config.get("format", "")))))
        raise NotPossible(
            f"the weights of {model.name} are quantized with {said[:80] or 'an unnamed method'}, which no engine of "
            "the catalog is known to load",
            hint="choose another quantization of the model: BF16, FP8, NVFP4, AWQ, MXFP4, AutoRound or GGUF",
        )
    return known


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
    head_dim = _int(node, "head_dim") or _int(node, "hidden_size", 1) // (_int(node, "num_attention_heads") or 1)
    kinds = set(_layer_types(node, _int(node, "num_hidden_layers", 1)))
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
        kv_heads=_int(node, "num_key_value_heads", 8),
        head_dim=head_dim,
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
    layers, hidden = _int(node, "num_hidden_layers"), _int(node, "hidden_size")
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
    if unknown := sorted(set(kinds) - {"full", "sliding", "linear"}):
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
    heads = _int(node, "num_attention_heads", 1)
    kv_heads = _int(node, "num_key_value_heads") or heads
    head_dim = _int(node, "head_dim") or max(_int(node, "hidden_size", 1) // heads, 1)
    found: dict[str, Any] = {}
    full, sliding, linear = (kinds.count(kind) for kind in ("full", "sliding", "linear"))
    if rank := _int(node, LATENT[0]):
        found["latent_attention"] = {"layers": full, "heads": heads, "width": rank + _int(node, LATENT[1])}
    elif full:
        # Gemma 4: its layers with full attention have heads of their own
        wide = {
            "kv_heads": _int(node, "num_global_key_value_heads") or kv_heads,
            "head_dim": _int(node, "global_head_dim") or head_dim,
        }
        found["full_attention"] = {"layers": full, "heads": heads, **wide}
    if sliding:
        window = (
            _int(node, "sliding_window") or _int(node, "attention_chunk_size") or _int(node, "max_position_embeddings")
        )
        plain = {"layers": sliding, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
        found["sliding_attention"] = plain
    if linear:
        found["linear_attention"] = {
            "layers": linear,
            "key_heads": _int(node, "linear_num_key_heads"),
            "value_heads": _int(node, "linear_num_value_heads"),
            "key_dim": _int(node, "linear_key_head_dim"),
            "value_dim": _int(node, "linear_value_head_dim"),
            "conv_kernel": _int(node, "linear_conv_kernel_dim", 4),
        }
    return found


def _needs(node: Node, vision: int) -> list[str]:
    kind = str(nested(node, "model_type") or node.get("model_type"))
    marks = {
        "sinks": kind.startswith("gpt_oss"),
        "latent": bool(_int(node, LATENT[0])),
        "image-prefix": bool(vision) and str(node.get("model_type", kind)).startswith(("gemma3", "gemma4")),
    }
    return [name for name, needed in marks.items() if needed]


def _layer_types(node: Node, layers: int) -> list[str]:
    """The kind of each layer: `full`, `sliding`, `linear`, or the name of one that is not known."""
    listed = nested(node, "layer_types")
    if isinstance(listed, list) and len(listed) >= layers:
        return [LAYER_KINDS.get(str(one), str(one)) for one in listed[:layers]]
    if isinstance(pattern := nested(node, "hybrid_override_pattern"), str):
        return [f"hybrid_override_pattern {pattern}"] * layers
    if (every := _int(node, "full_attention_interval")) and _int(node, "linear_num_value_heads"):
        return ["linear" if (layer + 1) % every else "full" for layer in range(layers)]
    if not _int(node, "sliding_window") or nested(node, "use_sliding_window") is False:
        return ["full"] * layers
    if every := _int(node, "sliding_window_pattern"):
        return ["sliding" if (layer + 1) % every else "full" for layer in range(layers)]
    return ["sliding"] * layers


def _parameters(node: Node, kinds: Sequence[str]) -> tuple[tuple[int, int] | None, int, int]:
    """Experts and their number per token, all parameters, and those that a token uses, without the vision tower.

    Norms and biases are left out: less than a thousandth.
    """
    hidden, wide = _int(node, "hidden_size"), _int(node, "intermediate_size")
    embedding = _int(node, "vocab_size") * hidden * (1 if _tied(node) else 2)
    attention = sum(_attention_parameters(node, kind) for kind in kinds)
    count = _int(node, "num_experts") or _int(node, "num_local_experts") or _int(node, "n_routed_experts")
    used = _int(node, "num_experts_per_tok") or _int(node, "experts_per_token") or _int(node, "top_k_experts")
    if not (count and used and used < count):
        whole = embedding + attention + len(kinds) * 3 * hidden * wide
        return None, whole, whole
    narrow = _int(node, "moe_intermediate_size") or wide
    shared = _int(node, "shared_expert_intermediate_size") or _int(node, "n_shared_experts") * narrow
    dense = min(_int(node, "first_k_dense_replace"), len(kinds))
    sparse, expert = len(kinds) - dense, 3 * hidden * narrow
    common = embedding + attention + dense * 3 * hidden * wide + sparse * (3 * hidden * shared + hidden * count)
    return (count, used), common + sparse * count * expert, common + sparse * used * expert


def _tied(node: Node) -> bool:
    said = node.get("tie_word_embeddings", nested(node, "tie_word_embeddings"))
    if said is None:
        # transformers: Gemma's default; others are false
        return str(node.get("model_type", "")).startswith("gemma")
    return bool(said)


def _attention_parameters(node: Node, kind: str) -> int:
    hidden, heads = _int(node, "hidden_size"), _int(node, "num_attention_heads", 1)
    if kind == "linear":
        keys = _int(node, "linear_num_key_heads") * _int(node, "linear_key_head_dim")
        values = _int(node, "linear_num_value_heads") * _int(node, "linear_value_head_dim")
        return hidden * (2 * keys + 3 * values)
    if rank := _int(node, LATENT[0]):
        rope, nope = _int(node, LATENT[1]), _int(node, "qk_nope_head_dim")
        value, query = _int(node, "v_head_dim"), heads * (nope + rope)
        low = _int(node, "q_lora_rank")
        queries = low * (hidden + query) if low else hidden * query
        return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    kv_heads = _int(node, "num_key_value_heads") or heads
    head_dim = _int(node, "head_dim") or hidden // heads
    if kind == "full" and _int(node, "global_head_dim"):
        kv_heads, head_dim = _int(node, "num_global_key_value_heads") or kv_heads, _int(node, "global_head_dim")
    gate = heads if nested(node, "attn_output_gate") is True else 0
    return hidden * head_dim * (2 * heads + 2 * kv_heads + gate)


def _vision_parameters(vision: object) -> int:
    """Parameters of the vision tower, of its layers only; at least 1 if there is one."""
    if not isinstance(vision, Mapping):
        return 0
    depth = _int(vision, "depth") or _int(vision, "num_hidden_layers") or _int(vision, "vt_num_hidden_layers")
    hidden = _int(vision, "hidden_size") or _int(vision, "vt_hidden_size")
    wide = _int(vision, "intermediate_size") or _int(vision, "vt_intermediate_size") or 4 * hidden
    return max(depth * (4 * hidden * hidden + 2 * hidden * wide), 1)


def _as_config(node: Node) -> Node:
    """A GGUF header in the keys of config.json; a config.json as it is."""
    kind = node.get("general.architecture")
    if not isinstance(kind, str):
        return node
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
    config["vision_config"] = node.get("vision_config")
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


def _int(node: Node, key: str, default: int = 0) -> int:
    value = nested(node, key)
    return value if _whole(value) else default


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
