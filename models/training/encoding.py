"""Encodes items as token ids, and collects these into padded batches."""

import random
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor

from .corpus import Item
from .images import ImageItem, random_image, random_image_item
from .settings import MERGE_SIZE
from .tokenizer import END_OF_TURN, IMAGE_PAD

IGNORED = -100  # label of the positions that the loss ignores
POOL_SIZE = 256  # number of shuffled examples that are sorted by length before they are split into batches


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation in tokens; the reply begins at `reply_start` and ends with the end of the turn."""

    tokens: list[int]
    reply_start: int
    pixels: Tensor | None = None
    """Patches of the image, [patches, channels x time x height x width]."""
    grid: Tensor | None = None
    """Patches in time, height and width, [1, 3]."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Renders conversations with the chat template, exactly as the server does."""

    tokenizer: PreTrainedTokenizerFast
    processor: Qwen2VLImageProcessor

    def text(self, item: Item) -> Example:
        """Encodes an item of the corpus."""
        messages = [{"role": role, "content": text} for role, text in item.messages]
        prompt = self._prompt(messages, item.enable_thinking)
        return self._example(prompt, item.reply)

    def image(self, item: ImageItem, image: Image.Image) -> Example:
        """Encodes a question about an image; its placeholder is repeated once for each vision token."""
        features = self.processor(image, return_tensors="pt")
        grid = features["image_grid_thw"]
        vision_tokens = int(grid.prod()) // MERGE_SIZE**2
        prompt = self._prompt([{"role": "user", "content": item.content}], item.enable_thinking)
        prompt = prompt.replace(IMAGE_PAD, IMAGE_PAD * vision_tokens)
        return self._example(prompt, item.reply, features["pixel_values"], grid)

    def random_images(self, count: int, rng: random.Random) -> list[Example]:
        """`count` questions drawn at random, each about a different image."""
        items = [random_image_item(rng) for _ in range(count)]
        return [self.image(item, random_image(item.colour, rng)) for item in items]

    def _prompt(self, messages: Sequence[Mapping[str, object]], enable_thinking: bool) -> str:
        rendered = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=enable_thinking
        )
        return str(rendered)

    def _example(self, prompt: str, reply: str, pixels: Tensor | None = None, grid: Tensor | None = None) -> Example:
        prompt_tokens = self.tokenizer(prompt)["input_ids"]
        reply_tokens = self.tokenizer(reply + END_OF_TURN)["input_ids"]
        return Example(prompt_tokens + reply_tokens, len(prompt_tokens), pixels, grid)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of similar length, padded on the right to the longest."""

    tokens: Tensor
    """[batch, length]; causal models need no mask for padding on the right."""
    labels: Tensor
    """[batch, length]: the tokens of the reply, and `IGNORED` at all other positions."""
    images: dict[str, Tensor]
    """Further arguments of the model if the batch has images; otherwise empty."""


def collate(examples: Sequence[Example], image_token_id: int) -> Batch:
    """Pads `examples` into one batch; either all of them have an image or none."""
    length = max(len(example.tokens) for example in examples)
    tokens = torch.zeros(len(examples), length, dtype=torch.long)
    labels = torch.full_like(tokens, IGNORED)
    for row, example in enumerate(examples):
        end = len(example.tokens)
        tokens[row, :end] = torch.tensor(example.tokens)
        labels[row, example.reply_start : end] = tokens[row, example.reply_start : end]
    return Batch(tokens, labels, _image_arguments(examples, tokens, image_token_id))


def _image_arguments(examples: Sequence[Example], tokens: Tensor, image_token_id: int) -> dict[str, Tensor]:
    pixels = [example.pixels for example in examples if example.pixels is not None]
    grids = [example.grid for example in examples if example.grid is not None]
    if not pixels:
        return {}
    return {
        "pixel_values": torch.cat(pixels),
        "image_grid_thw": torch.cat(grids),
        "mm_token_type_ids": (tokens == image_token_id).int(),
    }


class _Sequence(Protocol):
    """An object with a length in tokens."""

    @property
    def tokens(self) -> Sized: ...


T = TypeVar("T", bound=_Sequence)


def batches(examples: Sequence[T], tokens_per_batch: int, rng: random.Random) -> Iterator[list[T]]:
    """One pass over `examples` in random order, in batches of at most `tokens_per_batch` tokens, padding included."""
    shuffled = rng.sample(examples, len(examples))
    pools = [shuffled[start : start + POOL_SIZE] for start in range(0, len(shuffled), POOL_SIZE)]
    cut = [batch for pool in pools for batch in in_order_of_length(pool, tokens_per_batch)]
    rng.shuffle(cut)
    yield from cut


def in_order_of_length(examples: Sequence[T], tokens_per_batch: int) -> Iterator[list[T]]:
    """The same examples from the shortest to the longest, split into batches."""
    batch: list[T] = []
    for example in sorted(examples, key=lambda example: len(example.tokens)):
        if batch and (len(batch) + 1) * len(example.tokens) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
