"""The target's MTP head: one layer of full attention, with vLLM's weight names and arithmetic for Qwen3.5.

The head reads the target's last hidden state at a position and the embedding of the next token, and yields the token
after that. To draft further it reads its own output in place of the target's hidden state. Embeddings and output head
are the target's. Depth 0 is the first draft token.
"""

# mypy treats torch as untyped here, so its Module is Any.
# mypy: allow-subclassing-any

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

from .encoding import Example, collate, in_order_of_length
from .features import TOKENS_PER_BATCH


@dataclass(frozen=True, slots=True)
class HeadTrace:
    """The target's pass over one example of n tokens, as the MTP head reads it."""

    tokens: Tensor
    """[n]"""
    states: Tensor
    """[n, hidden]: the target's last hidden states, after its final norm."""
    embeddings: Tensor
    """[n, hidden]: the embedding of the token after each position; at the last position it is arbitrary."""
    rotations: Tensor
    """[n, 2, rotated dimensions]: cosine and sine of each position."""
    choices: Tensor
    """[n]: the token that the target chooses at each position; at the first position it is arbitrary."""
    reply_start: int


def trace_for_head(model: Qwen3_5ForConditionalGeneration, examples: Sequence[Example]) -> list[HeadTrace]:
    """Runs the target over all examples, in order of length, in float32: the same weights, and faster on many CPUs."""
    traces: list[HeadTrace] = []
    model = copy.deepcopy(model).float()
    for group in in_order_of_length(examples, TOKENS_PER_BATCH):
        batch = collate(group, model.config.image_token_id)
        with torch.no_grad():
            embeddings, rotations, states, logits = _pass(model, {"input_ids": batch.tokens, **batch.images})
        embeddings, choices = embeddings.roll(-1, dims=1), logits.argmax(-1).roll(1, dims=1)
        for row, example in enumerate(group):
            n = len(example.tokens)
            read = HeadTrace(
                tokens=batch.tokens[row, :n],
                states=states[row, :n],
                embeddings=embeddings[row, :n],
                rotations=rotations[row, :n],
                choices=choices[row, :n],
                reply_start=example.reply_start,
            )
            traces.append(read)
    return traces


def _pass(model: Qwen3_5ForConditionalGeneration, arguments: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Embeddings, rotations, last hidden states and logits of one batch."""
    seen: dict[str, Tensor] = {}

    def before(_layer: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, tuple[Tensor, Tensor]]) -> None:
        seen["embeddings"] = inputs[0]
        seen["rotations"] = torch.stack(options["position_embeddings"], dim=2)

    def after(_norm: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen["states"] = output

    language_model = model.model.language_model
    hooks = [
        language_model.layers[0].register_forward_pre_hook(before, with_kwargs=True),
        language_model.norm.register_forward_hook(after),
    ]
    try:
        logits = model(use_cache=False, **arguments).logits
    finally:
        for hook in hooks:
            hook.remove()
    rotations = seen["rotations"].expand(len(logits), -1, -1, -1)
    return seen["embeddings"], rotations, seen["states"], logits


class MtpHead(nn.Module):
    """Drafts at all positions of each sequence at once."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])
        self.norm = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(size, eps=eps)

    def forward(self, traces: Sequence[HeadTrace], depths: int) -> Iterator[Tensor]:
        """The output states of each depth, [batch, length, hidden].

        The state at position p and depth d belongs to the draft that began at position p - d.
        """
        states = pad_sequence([trace.states for trace in traces], batch_first=True)
        embeddings = pad_sequence([trace.embeddings for trace in traces], batch_first=True)
        cosine, sine = pad_sequence([trace.rotations for trace in traces], batch_first=True).unbind(2)
        cache = DynamicCache()
        embeddings = self.pre_fc_norm_embedding(embeddings)
        for depth in range(depths):
            joined = self.fc(torch.cat([embeddings, self.pre_fc_norm_hidden(states)], dim=-1))
            mixed = self.layers[0](
                joined,
                position_embeddings=(cosine, sine),
                attention_mask=_mask(states.shape[1], depth),
                past_key_values=cache,
            )
            output = self.norm(mixed)
            yield output
            # the next depth reads it one position further
            states = output.roll(1, dims=1)


def _mask(length: int, depth: int) -> Tensor:
    """What a draft sees at `depth`: what the target verified before it, and its own earlier depths.

    [1, 1, length, (depth + 1) x length], to be added to the scores: the keys of depth 0 first, then those of depth 1.
    """
    query, key = torch.arange(length)[:, None], torch.arange(length)
    verified = key <= query - depth
    drafted = [key == query - depth + earlier for earlier in range(1, depth + 1)]
    seen = torch.cat([verified, *drafted], dim=1)
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
