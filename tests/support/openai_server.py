"""A small OpenAI server over real HTTP, whose model knows its answers by heart.

It counts in vLLM's names, takes one key, and has one of the limits of each kind. A token is a word.
"""

import base64
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import count
from typing import Any

from PIL import Image

from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.client.images import DIGITS
from tests.support.rated import rated
from tests.support.serving import Quiet, listening

KEY = "the-key-of-a-scripted-server-0123456789"
MODEL = "scripted"
PICTURE_TOKENS = 50
SECONDS_PER_TOKEN = 0.002
TOGETHER = 0.5  # seconds that a request waits for others where an engine fails only beside them
PROGRAM = "def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2) # from 0 on"


@dataclass
class Engine:
    """What the server is like, and what it has counted.

    `forgets`: from its third word on an answer repeats itself, since a rejected draft has changed the target's state,
    while the same words read as a prompt are rated right. buun-llama-cpp 1c4788192 does so with hybrid targets.
    `forgets_above`: only while more requests are running, which each one waits for; llama.cpp b11549 does so with four
    sequences and a drafter.
    """

    model: str = MODEL
    root: str = "/models/target"
    context: int = 2048
    body_limit: int = 2**20
    accepted: tuple[float, ...] | None = (0.9, 0.8, 0.7)
    thinks_apart: bool = True
    program: str = PROGRAM
    forgets: bool = False
    forgets_above: int | None = None
    running: int = 0
    generated: int = 0
    drafts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    came: threading.Condition = field(default_factory=threading.Condition)
    numbers: Iterator[int] = field(default_factory=count)

    words: list[str] = field(default_factory=list)

    def numbered(self, words: list[str]) -> list[int]:
        """The words as tokens: each gets a number when it comes first."""
        with self.lock:
            self.words += [word for word in dict.fromkeys(words) if word not in self.words]
            return [self.words.index(word) for word in words]

    def metrics(self) -> str:
        """The text of /metrics, in vLLM's names."""
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
            "# TYPE vllm:generation_tokens_total counter",
            f'vllm:generation_tokens_total{{engine="0"}} {self.generated}',
        ]
        if self.accepted is not None:
            right = [int(share * self.drafts) for share in self.accepted]
            lines += [
                "# TYPE vllm:spec_decode_num_drafts_total counter",
                f"vllm:spec_decode_num_drafts_total {self.drafts}",
                f"vllm:spec_decode_num_draft_tokens_total {self.drafts * len(right)}",
                f"vllm:spec_decode_num_accepted_tokens_total {sum(right)}",
            ]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {number}'
                for place, number in enumerate(right)
            ]
        return "\n".join(lines) + "\n"


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def tokens_of(messages: list[dict[str, Any]]) -> int:
    """Words, some for each picture, and a few around each message."""
    total = 0
    for message in messages:
        pictures, text = _parts(message)
        total += 4 + len(text.split()) + PICTURE_TOKENS * len(pictures)
    return total


def _parts(message: dict[str, Any]) -> tuple[list[str], str]:
    if isinstance(message["content"], str):
        return [], message["content"]
    pictures = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    return pictures, " ".join(part["text"] for part in message["content"] if part["type"] == "text")


def reply(engine: Engine, asked: dict[str, Any]) -> str:
    """What the model says."""
    pictures, question = _parts(asked["messages"][-1])
    before = " ".join(_parts(message)[1] for message in asked["messages"])
    if pictures:
        return _seen(pictures[0])
    if "response_format" in asked:
        return '{"answer": "yes", "sure": true}'
    if found := re.search(r"the code (K\d+)", before):
        return found[1]
    if found := re.search(r"Count (?:down )?from (\d+) to (\d+)", question):
        first, last = int(found[1]), int(found[2])
        step = 1 if first <= last else -1
        return ", ".join(map(str, range(first, last + step, step)))
    for word, answer in {
        "capital of France": "The capital is Paris.",
        "Fibonacci": engine.program * 5,
        "three spiders": "They have 24 legs.",
    }.items():
        if word in question:
            return answer
    return "I do not see anything."


def _seen(uri: str) -> str:
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    colours = picture.getcolors()
    if colours is not None and len(colours) == 1:
        return next(name for name, value in COLOURS.items() if value == colours[0][1])
    ink = picture.convert("L").point(lambda value: 255 - value)
    drawn = ink.crop(ink.getbbox())
    small = drawn.resize((5, 7), Image.Resampling.NEAREST)
    dots = tuple("".join("1" if small.getpixel((x, y)) else "0" for x in range(5)) for y in range(7))
    if dots in DIGITS:
        return str(DIGITS.index(dots))
    # a digit that is narrower than five dots is stretched by the crop
    if drawn.width < 0.6 * drawn.height:
        return "1"
    filled = sum(1 for value in drawn.tobytes() if value) / (drawn.width * drawn.height)
    return "square" if filled > 0.95 else "circle" if filled > 0.65 else "triangle"


class Handler(Quiet, BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {})
        elif not self._let_in():
            return
        elif self.path == "/v1/models":
            one = {"id": self.engine.model, "root": self.engine.root, "max_model_len": self.engine.context}
            self.answer(200, {"data": [one]})
        elif self.path == "/metrics":
            self.send(200, "text/plain", self.engine.metrics().encode())
        elif self.path == "/openapi.json":
            self.answer(200, {"paths": {"/v1/models": {}, "/v1/chat/completions": {}, "/pause": {}}})
        else:
            self.refuse(404, "Not Found")

    def do_HEAD(self) -> None:
        if self._let_in():
            self.answer(405, {})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if not self._let_in():
            return
        if length > self.engine.body_limit:
            self.close_connection = True
            self.refuse(413, "too large")
            return
        asked = json.loads(self.rfile.read(length))
        if self.path == "/v1/completions" and asked:
            self._echo(asked)
        elif self.path != "/v1/chat/completions" or not asked:
            self.refuse(404 if self.path != "/v1/chat/completions" else 400, "no")
        elif asked["model"] != self.engine.model:
            self.refuse(404, f"The model `{asked['model']}` does not exist.")
        elif tokens_of(asked["messages"]) + asked["max_tokens"] > self.engine.context:
            wanted = tokens_of(asked["messages"]) + asked["max_tokens"]
            said = f"This model's maximum context length is {self.engine.context} tokens. You requested {wanted}."
            self.refuse(400, said)
        else:
            self._complete(asked)

    def _let_in(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {KEY}":
            return True
        length = int(self.headers.get("Content-Length", "0"))
        if length <= self.engine.body_limit:
            self.rfile.read(length)
        self.refuse(401, "a key is needed")
        return False

    def _crowded(self) -> bool:
        """Whether as many requests are running as it takes to forget, once they have had time to come."""
        engine, above = self.engine, self.engine.forgets_above
        if above is None:
            return False
        with engine.came:
            engine.came.notify_all()
            return engine.came.wait_for(lambda: engine.running > above, TOGETHER)

    def _complete(self, asked: dict[str, Any]) -> None:
        with self.engine.lock:
            self.engine.running += 1
            name = f"chatcmpl-{next(self.engine.numbers)}"
        crowded = self._crowded()
        try:
            words = _words(reply(self.engine, asked))
            if asked.get("ignore_eos"):
                words = (words * asked["max_tokens"])[: asked["max_tokens"]]
            finish = "stop" if len(words) <= asked["max_tokens"] and not asked.get("ignore_eos") else "length"
            words = words[: asked["max_tokens"]]
            if self.engine.forgets or crowded:
                words = words[:3] + words[2:3] * len(words[3:])
            usage = {"prompt_tokens": tokens_of(asked["messages"]), "completion_tokens": len(words)}
            if asked.get("stream"):
                self._stream(name, words, finish, usage, wanted="stream_options" in asked)
            else:
                self._count(len(words))
                choice: dict[str, Any] = {
                    "index": 0,
                    "finish_reason": finish,
                    "message": self._message(asked, "".join(words)),
                }
                if asked.get("logprobs"):
                    choice["logprobs"] = {"content": [_sure(word) for word in words]}
                said: dict[str, Any] = {"id": name, "model": self.engine.model, "choices": [choice], "usage": usage}
                if asked.get("return_token_ids"):
                    # a token of the prompt is the whole question
                    question = _parts(asked["messages"][-1])[1]
                    said["prompt_token_ids"] = self.engine.numbered([question])
                    choice["token_ids"] = self.engine.numbered(words)
                self.answer(200, said)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.engine.lock:
                self.engine.running -= 1

    def _echo(self, asked: dict[str, Any]) -> None:
        """A prompt of one question and the words of an answer: how likely each is, read without drafts."""
        question, *answer = (self.engine.words[number] for number in asked["prompt"])
        own = _words(reply(self.engine, {"messages": [{"role": "user", "content": question}]}))
        self.answer(200, {"choices": [{"text": "", "logprobs": rated(question, answer, own)}]})

    def _message(self, asked: dict[str, Any], text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if found := re.search(r"weather in (\w+)", json.dumps(asked["messages"])) if "tools" in asked else None:
            function = {"name": "get_weather", "arguments": json.dumps({"city": found[1]})}
            message |= {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        if (asked.get("chat_template_kwargs") or {}).get("enable_thinking"):
            thought = "Three times eight is 24."
            if self.engine.thinks_apart:
                message["reasoning"] = thought
            else:
                message["content"] = f"<think>{thought}</think>{text}"
        return message

    def _stream(self, name: str, words: list[str], finish: str, usage: dict[str, int], *, wanted: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, word in enumerate(words):
            last = finish if number == len(words) - 1 else None
            self.event({"id": name, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": last}]})
            self._count(1)
            time.sleep(SECONDS_PER_TOKEN)
        if wanted:
            self.event({"id": name, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _count(self, tokens: int) -> None:
        with self.engine.lock:
            self.engine.generated += tokens
            self.engine.drafts += tokens if self.engine.accepted is not None else 0

    def event(self, said: dict[str, Any]) -> None:
        """One server-sent event."""
        self.wfile.write(b"data: " + json.dumps(said).encode() + b"\n\n")
        self.wfile.flush()

    def refuse(self, status: int, message: str) -> None:
        """An error in OpenAI's shape."""
        self.answer(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def answer(self, status: int, body: object) -> None:
        """A JSON document."""
        self.send(status, "application/json", json.dumps(body).encode())


def _sure(word: str) -> dict[str, Any]:
    """A token that nothing else came close to."""
    return {"token": word, "top_logprobs": [{"token": word, "logprob": -0.01}, {"token": "?", "logprob": -5.0}]}


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """The server of one engine; yields its address."""
    with listening(type("EngineHandler", (Handler,), {"engine": engine})) as url:
        yield url
