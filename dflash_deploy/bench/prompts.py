"""Prompts with known answers, one JSON document per line, as models/tiny/prompts.jsonl has them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dflash_deploy.client.images import data_uri, plain_png
from dflash_deploy.intake import read_text

Kind = Literal["chat", "thinking", "long", "image"]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Line):
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Picture(_Line):
    """A plain image: the name of its colour, its sRGB value, its size in pixels."""

    colour: str
    rgb: tuple[int, int, int]
    width: int
    height: int


class Prompt(_Line):
    """One request. `expected` is the complete reply, word for word; `answer` is a part that it must contain."""

    id: str
    kind: Kind
    messages: tuple[Message, ...]
    enable_thinking: bool
    image: Picture | None
    answer: str
    expected: str
    max_tokens: int

    def body(self, model: str) -> dict[str, object]:
        """The body of a chat completion, decoded greedily. The image goes with the last turn, before its text."""
        messages: list[dict[str, object]] = [message.model_dump() for message in self.messages]
        if self.image is not None:
            png = plain_png(self.image.rgb, self.image.width, self.image.height)
            picture = {"type": "image_url", "image_url": {"url": data_uri(png)}}
            messages[-1]["content"] = [picture, {"type": "text", "text": self.messages[-1].content}]
        return {
            "model": model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": self.enable_thinking},
        }


def load_prompts(path: Path, *kinds: Kind) -> list[Prompt]:
    """The prompts of a file, of the given kinds or of all. Raises pydantic.ValidationError for an invalid line."""
    prompts = map(Prompt.model_validate_json, read_text(path).splitlines())
    return [prompt for prompt in prompts if not kinds or prompt.kind in kinds]
