"""Trains the drafter on the target's traces, and measures its acceptance length."""

import logging
import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3_5ForConditionalGeneration

from .drafter import Drafter
from .encoding import IGNORED, batches
from .features import Trace
from .optimiser import build_optimiser
from .settings import BLOCK_SIZE, DrafterTraining

log = logging.getLogger(__name__)


class Distiller:
    """The drafter between the target's embeddings and the target's output head, both frozen."""

    def __init__(self, target: Qwen3_5ForConditionalGeneration, mask_token_id: int) -> None:
        self.embeddings: Tensor = target.get_input_embeddings().weight.detach().float()
        self.head: Tensor = target.lm_head.weight.detach().float()
        self.mask_token_id = mask_token_id
        self.drafter = Drafter(self.embeddings.shape[1])

    def logits(self, traces: Sequence[Trace], anchors: Tensor) -> Tensor:
        """The logits of the draft tokens, [batch, anchors, block - 1, vocabulary], for `anchors` [batch, anchors]."""
        tokens = pad_sequence([trace.tokens for trace in traces], batch_first=True)
        features = pad_sequence([trace.features for trace in traces], batch_first=True)
        queries = torch.full((*anchors.shape, BLOCK_SIZE), self.mask_token_id)
        queries[:, :, 0] = tokens.gather(1, anchors)
        with torch.autocast("cpu", torch.bfloat16):
            states = self.drafter(features, functional.embedding(queries, self.embeddings), anchors)
            return functional.linear(states[:, :, 1:], self.head)

    def train(self, traces: Sequence[Trace], training: DrafterTraining, seed: int) -> Drafter:
        """Trains on blocks at random anchors; returns the drafter in bfloat16, as it is served."""
        torch.manual_seed(seed)
        self.drafter = Drafter(self.embeddings.shape[1]).train()
        optimiser = build_optimiser(self.drafter, training.schedule)
        stream = _endless_batches(traces, training.tokens_per_batch, random.Random(seed))  # noqa: S311 - nothing secret
        weights = torch.exp(-torch.arange(BLOCK_SIZE - 1) / training.weight_decay_length)
        began = time.monotonic()
        for step in range(1, training.schedule.steps + 1):
            batch = next(stream)
            anchors = _random_anchors(batch, training.blocks_per_batch)
            loss = _weighted_loss(self.logits(batch, anchors), _labels(batch, anchors), weights)
            optimiser.step(loss)
            if step % 50 == 0:
                log.info("drafter step %d: loss %.4f, %.0f s", step, loss.item(), time.monotonic() - began)
        self.drafter = self.drafter.to(torch.bfloat16).eval()
        return self.drafter

    def acceptance_length(self, traces: Sequence[Trace]) -> float:
        """Mean tokens per step over whole replies: the accepted draft tokens and the target's own token."""
        steps = tokens = 0
        for trace in traces:
            anchors = torch.arange(trace.reply_start, len(trace.tokens) - 1)[None]
            labels = _labels([trace], anchors)[0]
            with torch.inference_mode():
                hits = self.logits([trace], anchors)[0].argmax(-1) == labels
            accepted = hits.long().cumprod(dim=-1).sum(-1).tolist()
            place = 0
            while place < len(accepted):
                steps += 1
                tokens += min(accepted[place] + 1, len(accepted) - place)
                place += accepted[place] + 1
        return tokens / steps


def _endless_batches(traces: Sequence[Trace], tokens_per_batch: int, rng: random.Random) -> Iterator[list[Trace]]:
    while True:
        yield from batches(traces, tokens_per_batch, rng)


def _random_anchors(traces: Sequence[Trace], blocks_per_batch: int) -> Tensor:
    """About `blocks_per_batch` random places in the replies, [batch, anchors]; at least one token follows each."""
    starts = torch.tensor([trace.reply_start for trace in traces])
    spans = torch.tensor([len(trace.tokens) - 1 - trace.reply_start for trace in traces])
    count = -(-blocks_per_batch // len(traces))
    return starts[:, None] + (torch.rand(len(traces), count) * spans[:, None]).long()


def _labels(traces: Sequence[Trace], anchors: Tensor) -> Tensor:
    """The target's choices after each anchor, [batch, anchors, block - 1]; `IGNORED` beyond the end of the reply."""
    choices = pad_sequence([trace.choices for trace in traces], batch_first=True, padding_value=IGNORED)
    places = anchors[:, :, None] + torch.arange(1, BLOCK_SIZE)
    beyond = places >= choices.shape[1]
    picked = choices.gather(1, places.clamp(max=choices.shape[1] - 1).flatten(1)).view_as(places)
    return picked.masked_fill(beyond, IGNORED)


def _weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy, a scalar; position k has weight `weights[k - 1]`: an early miss costs all later draft tokens."""
    losses = functional.cross_entropy(
        logits.flatten(0, 2).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    shares = weights.expand_as(labels) * (labels != IGNORED)
    return (losses.view_as(labels) * shares).sum() / shares.sum()
