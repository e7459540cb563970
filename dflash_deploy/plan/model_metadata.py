"""A model's own metadata, read from its config.json or from the header of a GGUF.

Keys of config.json are those of transformers, of z-lab's drafters, and of the speculators library, which has the
drafter's layers in `transformer_layer_config`. Keys of a GGUF are those of ggml's docs/gguf.md;
keys of a GGUF drafter those of llama.cpp (conversion/qwen.py) or of the buun fork, which begin with
`dflash-draft.dflash.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

LARGEST = 2**63  # numbers of a model are smaller; no file of a real model has another one
Node = Mapping[str, object] | None


@dataclass(frozen=True)
class ModelMetadata:
    """What target and drafter say about themselves and must agree on. `None`: the metadata does not say it.

    `deepest_layer` is the deepest target layer that a drafter reads, counted from 0. `tokens` is a digest of the
    vocabulary's texts. `scaled_positions` says that positions are scaled beyond those of the training, by YaRN or
    similar. `head_layers` is the number of layers of the MTP head, `key_heads` that of key heads in recurrent layers.
    """

    architecture: str | None = None
    hidden_size: int | None = None
    layers: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    deepest_layer: int | None = None
    block_size: int | None = None
    rope_theta: float | None = None
    scaled_positions: bool | None = None
    tokens: str | None = None
    head_layers: int | None = None
    key_heads: int | None = None


def metadata_of(node: Node) -> ModelMetadata:
    """Read a config.json or a GGUF header. A value that is missing, or of another type than expected, is `None`."""
    if node is None:
        return ModelMetadata()
    architecture = node.get("general.architecture")
    return _of_header(node, architecture) if isinstance(architecture, str) else _of_config(node)


def _of_header(node: Mapping[str, object], architecture: str) -> ModelMetadata:
    def number(name: str) -> int | None:
        return _number(node.get(f"{architecture}.{name}"), node.get(f"{architecture}.dflash.{name}"))

    # llama.cpp counts the output of the embedding as layer 0, the fork and config.json do not
    read, offset = node.get(f"{architecture}.target_layers"), 1
    if read is None:
        read, offset = node.get(f"{architecture}.dflash.target_layer_ids"), 0
    deepest = _deepest(read)
    tokens, scaling = node.get("tokenizer.ggml.tokens.sha256"), node.get(f"{architecture}.rope.scaling.type")
    return ModelMetadata(
        architecture=architecture,
        hidden_size=number("embedding_length"),
        layers=number("block_count"),
        vocabulary=_number(node.get("tokenizer.ggml.tokens.length"), node.get(f"{architecture}.vocab_size")),
        context=number("context_length"),
        deepest_layer=None if deepest is None else deepest - offset,
        block_size=number("block_size"),
        rope_theta=_figure(node.get(f"{architecture}.rope.freq_base")),
        scaled_positions=_text(scaling) not in {None, "none"},
        tokens=_text(tokens),
    )


def _of_config(node: Mapping[str, object]) -> ModelMetadata:
    rope = nested(node, "rope_parameters") or nested(node, "rope_scaling")
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else None
    theta = nested(node, "rope_theta") or (rope.get("rope_theta") if isinstance(rope, Mapping) else None)
    names = nested(node, "architectures")
    first = names[0] if isinstance(names, list) and names else None
    return ModelMetadata(
        architecture=_text(first),
        hidden_size=_number(nested(node, "target_hidden_size"), nested(node, "hidden_size")),
        layers=_number(nested(node, "num_hidden_layers")),
        vocabulary=_number(nested(node, "vocab_size")),
        context=_number(nested(node, "max_position_embeddings")),
        deepest_layer=_deepest_read(node),
        block_size=_number(nested(node, "dflash_config", "block_size"), nested(node, "block_size")),
        rope_theta=_figure(theta),
        scaled_positions=_text(kind) not in {None, "default", "mrope"},
        # Qwen3.5's name for them, and that of DeepSeek, GLM and others (vLLM config/speculative.py, 0.32)
        head_layers=_number(nested(node, "mtp_num_hidden_layers"), nested(node, "num_nextn_predict_layers")),
        key_heads=_number(nested(node, "linear_num_key_heads")),
    )


def nested(node: Node, *keys: str) -> object:
    """A value of a config.json, from its top level, its text_config or its transformer_layer_config (speculators).

    `None` if none of them has it.
    """
    given = node or {}
    for place in (node, given.get("text_config"), given.get("transformer_layer_config")):
        found: object = place
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def _deepest_read(node: Mapping[str, object]) -> int | None:
    """The speculators library counts the output of the embedding as layer 0 (vLLM 0.33, speculators/algos.py)."""
    deepest = _deepest(nested(node, "dflash_config", "target_layer_ids"))
    counted = _deepest(nested(node, "aux_hidden_state_layer_ids"))
    return counted - 1 if deepest is None and counted else deepest


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(*candidates: object) -> int | None:
    return next((one for one in candidates if _is_number(one)), None)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _figure(value: object) -> float | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return float(value) if _is_number(value) else None


def _deepest(layers: object) -> int | None:
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        return None
    return max(filter(_is_number, layers), default=None)
