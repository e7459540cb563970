"""The drafter's training data: the frozen target's hidden states and the tokens that it chooses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForConditionalGeneration

from .encoding import Example, collate, in_order_of_length
from .settings import TARGET_LAYER_IDS

TOKENS_PER_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Trace:
    """The target's pass over one example of n tokens."""

    tokens: Tensor
    """[n]"""
    features: Tensor
    """[n, layers x hidden]: outputs of the layers `TARGET_LAYER_IDS`, side by side."""
    choices: Tensor
    """[n]: the token that the target chooses at each position; at the first position it is arbitrary."""
    reply_start: int


def trace(model: Qwen3_5ForConditionalGeneration, examples: Sequence[Example]) -> list[Trace]:
    """Runs the target over all examples, in order of length."""
    traces: list[Trace] = []
    for group in in_order_of_length(examples, TOKENS_PER_BATCH):
        batch = collate(group, model.config.image_token_id)
        with torch.no_grad(), _captured_layers(model) as outputs:
            logits = model(input_ids=batch.tokens, use_cache=False, **batch.images).logits
        features = torch.cat(outputs, dim=-1)
        choices = logits.argmax(-1).roll(1, dims=1)
        for row, example in enumerate(group):
            end = len(example.tokens)
            traces.append(Trace(batch.tokens[row, :end], features[row, :end], choices[row, :end], example.reply_start))
    return traces


@contextmanager
def _captured_layers(model: Qwen3_5ForConditionalGeneration) -> Iterator[list[Tensor]]:
    """Collects the outputs of the layers that the drafter reads, each [batch, length, hidden]."""
    outputs: list[Tensor] = []
    layers = model.model.language_model.layers

    def capture(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)

    hooks = [layers[n].register_forward_hook(capture) for n in TARGET_LAYER_IDS]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
