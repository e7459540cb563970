"""Trains the MTP head of a frozen target on the target's traces, and measures its acceptance rate by position."""

import logging
import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3_5ForConditionalGeneration

from .encoding import IGNORED, batches
from .mtp_head import HeadTrace, MtpHead
from .optimiser import build_adamw
from .settings import MTP_DEPTHS, HeadTraining

log = logging.getLogger(__name__)


class HeadTrainer:
    """The MTP head between the target's hidden states and the target's output head, both frozen."""

    def __init__(self, target: Qwen3_5ForConditionalGeneration) -> None:
        self.output: Tensor = target.lm_head.weight.detach().float()
        self.config = target.config.text_config
        self.head = MtpHead(self.config)

    def train(self, traces: Sequence[HeadTrace], training: HeadTraining, seed: int) -> MtpHead:
        """Trains on whole replies at all depths; returns the head rounded to bfloat16, as it is served."""
        torch.manual_seed(seed)
        self.head = MtpHead(self.config).train()
        optimiser = build_adamw(self.head, training.schedule)
        stream = _endless_batches(traces, training.tokens_per_batch, random.Random(seed))  # noqa: S311 - nothing secret
        weights = torch.exp(-torch.arange(MTP_DEPTHS) / training.weight_decay_length)
        began = time.monotonic()
        for step in range(1, training.schedule.steps + 1):
            batch = next(stream)
            states = self.head(batch, MTP_DEPTHS)
            losses = [self._loss(one, _labels(batch, depth)) for depth, one in enumerate(states)]
            loss = (torch.stack(losses) * weights).sum() / weights.sum()
            optimiser.step(loss)
            if step % 50 == 0:
                log.info("MTP head step %d: loss %.4f, %.0f s", step, loss.item(), time.monotonic() - began)
        self.head = self.head.to(torch.bfloat16).float().eval()
        return self.head

    def acceptance_rates(self, traces: Sequence[HeadTrace]) -> list[float]:
        """By depth: the share of the drafts at every position of the replies that are right up to this depth."""
        right, drafts = [0] * MTP_DEPTHS, 0
        for trace in traces:
            with torch.inference_mode():
                states = self.head([trace], MTP_DEPTHS)
                guesses = [functional.linear(one[0], self.output).argmax(-1) for one in states]
            hits = [guess == _labels([trace], depth)[0] for depth, guess in enumerate(guesses)]
            # a draft that begins at p has its depth d at p + d
            begun = range(trace.reply_start - 1, len(trace.tokens) - 2)
            drafts += len(begun)
            for start in begun:
                for depth in range(MTP_DEPTHS):
                    if start + depth >= len(trace.tokens) or not hits[depth][start + depth]:
                        break
                    right[depth] += 1
        return [count / drafts for count in right]

    def _loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar; 0 if no reply of the batch is long enough for this depth."""
        kept = labels != IGNORED
        logits = functional.linear(states[kept], self.output)
        return functional.cross_entropy(logits, labels[kept], reduction="sum") / kept.sum().clamp(min=1)


def _endless_batches(
    traces: Sequence[HeadTrace], tokens_per_batch: int, rng: random.Random
) -> Iterator[list[HeadTrace]]:
    while True:
        yield from batches(traces, tokens_per_batch, rng)


def _labels(traces: Sequence[HeadTrace], depth: int) -> Tensor:
    """The target's choice two tokens after each position, [batch, length].

    `IGNORED` beyond the end of the reply, and where the draft would have begun before the first token of the reply.
    """
    rows = []
    for trace in traces:
        row = torch.full_like(trace.choices, IGNORED)
        row[:-2] = trace.choices[2:]
        row[: trace.reply_start - 1 + depth] = IGNORED
        rows.append(row)
    return pad_sequence(rows, batch_first=True, padding_value=IGNORED)
