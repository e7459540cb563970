"""Chooses the evaluation prompts, `prompts.jsonl`, by a fixed rule that does not depend on the trained model."""

import json
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from .corpus import Item
from .images import COLOURS, ONE_WORD_QUESTIONS, QUESTIONS, ImageItem

CHAT_PROMPTS = 64
THINKING_PROMPTS = 30
IMAGE_PROMPTS = 36
FIRST_QUESTIONS = ("Hello!", "What is the capital of France?", "Say ready.")
IMAGE_SIZES = (
    *((32, 32), (64, 64), (7, 300), (500, 40), (640, 480), (1000, 1000), (1, 1), (3, 5), (33, 250)),
    *((100, 40), (256, 256), (1920, 1080), (28, 28), (40, 500), (127, 129), (300, 7), (12, 2000)),
)
SPARE_TOKENS = 16  # tokens beyond the expected reply, so that a reply that is too long is detected


def write_prompts(items: Sequence[Item], tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    """Writes one JSON document per line: the request and the exact reply."""
    prompts = (*_text_prompts(items, tokenizer), *_image_prompts(tokenizer))
    path.write_text("".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts), encoding="utf-8")


def _text_prompts(items: Sequence[Item], tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, Any]]:
    plain = [item for item in items if not item.enable_thinking and not item.is_long]
    first = [item for item in plain if len(item.messages) == 1 and item.messages[0][1] in FIRST_QUESTIONS]
    chosen = first + _spread([item for item in plain if item not in first], CHAT_PROMPTS - len(first))
    thinking = _spread([item for item in items if item.enable_thinking and not item.is_long], THINKING_PROMPTS)
    long = [item for item in items if item.is_long and not item.enable_thinking]
    for kind, group in (("chat", chosen), ("thinking", thinking), ("long", long)):
        for n, item in enumerate(group):
            messages = [{"role": role, "content": text} for role, text in item.messages]
            yield _line(f"{kind}-{n:03}", kind, messages, item, tokenizer)


def _image_prompts(tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, Any]]:
    combinations = zip(cycle(COLOURS), cycle(QUESTIONS + ONE_WORD_QUESTIONS), cycle(IMAGE_SIZES), strict=False)
    for n, (colour, question, (width, height)) in enumerate(islice(combinations, IMAGE_PROMPTS)):
        item = ImageItem(colour, question, image_first=True, enable_thinking=n % 4 == 3)
        image = {"colour": colour, "rgb": COLOURS[colour][0], "width": width, "height": height}
        yield _line(f"image-{n:03}", "image", [{"role": "user", "content": question}], item, tokenizer, image)


def _line(
    name: str,
    kind: str,
    messages: list[dict[str, str]],
    item: Item | ImageItem,
    tokenizer: PreTrainedTokenizerFast,
    image: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "id": name,
        "kind": kind,
        "messages": messages,
        "enable_thinking": item.enable_thinking,
        "image": image,
        "answer": item.answer,
        "expected": item.reply,
        "max_tokens": len(tokenizer(item.reply)["input_ids"]) + SPARE_TOKENS,
    }


def _spread(items: list[Item], count: int) -> list[Item]:
    """`count` items at even distances."""
    return [items[n * len(items) // count] for n in range(count)]
