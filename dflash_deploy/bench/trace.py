"""Replays a trace: the times, lengths and shared beginnings of recorded requests, with texts of our own.

The format is that of Mooncake's traces (kvcache-ai/Mooncake, FAST25-release), which aiperf, guidellm and the gateway's
RECORD_SHAPES have too: a JSON object in each line. A number of `hash_ids` is a block of 512 tokens with all blocks
before it, so the same number is the same text here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from secrets import token_hex
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dflash_deploy.bench.agents import TurnLoad, WatchedLoad, text_of
from dflash_deploy.bench.workload import PromptLine, parse_line
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion
from dflash_deploy.errors import BadInput, FileRefused
from dflash_deploy.intake.files import MIB, STDIN, read_argument, shown
from dflash_deploy.serve.gateway.shapes import BLOCK

LARGEST_TRACE = 64 * MIB
"""Bytes of a trace."""

MOST_TRACED = 20_000
"""Lines of a trace."""

MOST_PROMPTS = 1 << 25
"""Tokens of all prompts: their texts are made before the first is sent, and take about four bytes each."""

LONGEST_TRACE_S = 7200
"""Seconds from the first request to the last one."""

MOST_OPEN = 512
"""Requests in flight; most systems allow 1,024 open files."""

LEAD_S = 0.5
"""Seconds before the first request, in which the engine's counters are read."""

LONGEST_MEASURED = 8192
"""Tokens of the prompt that says how long the texts become."""

SPARE = 0.02
"""Share of the context that stays free: a text has about the tokens that it should have."""

ENDLESS = 2**40
"""A context that all requests fit."""

EXAMPLE = '{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [0, 1]}'

_FEWER = "replay its beginning: `head -n 500 FILE | dflash-deploy bench --trace -`"


class TraceLine(BaseModel):
    """One request. Other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    timestamp: Annotated[float, Field(ge=0, lt=2**53)]
    """Milliseconds, from any moment."""
    input_length: Annotated[int, Field(gt=0, lt=2**31)]
    output_length: Annotated[int, Field(gt=0, lt=2**31)]
    hash_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _has_all_blocks(self) -> TraceLine:
        blocks = ceil(self.input_length / BLOCK)
        if self.hash_ids and len(self.hash_ids) != blocks:
            raise ValueError(
                f"`hash_ids` has {len(self.hash_ids)} blocks, but {self.input_length} tokens are {blocks} of {BLOCK}"
            )
        return self


@dataclass(frozen=True)
class Trace:
    """The requests of a file in the order of their times, each with the number of its line."""

    name: str
    requests: tuple[tuple[int, TraceLine], ...]

    @property
    def lines(self) -> list[TraceLine]:
        """The requests without their numbers."""
        return [line for _, line in self.requests]

    @property
    def times(self) -> list[float]:
        """Seconds from the first request to each."""
        first = self.requests[0][1].timestamp
        return [(line.timestamp - first) / 1000 for _, line in self.requests]

    @property
    def shared(self) -> float:
        """Share of the prompts' tokens in blocks that a prompt before began with."""
        seen, shared = set[int](), 0
        for line in self.lines:
            known = next((at for at, number in enumerate(line.hash_ids) if number not in seen), len(line.hash_ids))
            shared += min(known * BLOCK, line.input_length)
            seen.update(line.hash_ids)
        return shared / sum(line.input_length for line in self.lines)

    def check_fit(self, context: int) -> None:
        """Raises BadInput, with its line, for a request that does not fit the context."""
        for number, line in self.requests:
            if line.input_length + line.output_length > context:
                raise BadInput(
                    f"{self.name}, line {number}: {line.input_length} tokens and an answer of {line.output_length} do "
                    f"not fit a context of {context} tokens",
                    hint="leave such lines out, or serve a longer context",
                )


def read_trace(path: Path) -> Trace:
    """The trace in a file, or in standard input for `-`. Raises BadInput with the line that is wrong."""
    name = "standard input" if path == STDIN else shown(path)
    try:
        written = read_argument(path, limit=LARGEST_TRACE)
    except FileRefused as problem:
        raise BadInput(
            problem.message, hint=f"name a JSONL file of up to {LARGEST_TRACE // MIB} MiB; {_FEWER}"
        ) from None
    if (breaks := written.rstrip("\n").count("\n")) >= MOST_TRACED:
        raise BadInput(f"{name} has {breaks + 1} lines (limit: {MOST_TRACED})", hint=_FEWER)
    lines = [(number, text) for number, text in enumerate(written.split("\n"), 1) if text.strip()]
    if not lines:
        raise BadInput(f"{name} has no requests", hint=f"a line looks like this: {EXAMPLE}")
    requests = [(number, parse_line(TraceLine, f"{name}, line {number}", text, EXAMPLE)) for number, text in lines]
    trace = Trace(name, tuple(sorted(requests, key=lambda one: one[1].timestamp)))
    if trace.times[-1] > LONGEST_TRACE_S:
        raise BadInput(f"{name} lasts {trace.times[-1]:.0f} s (limit: {LONGEST_TRACE_S})", hint=_FEWER)
    if (tokens := sum(line.input_length for line in trace.lines)) > MOST_PROMPTS:
        raise BadInput(f"{name} has prompts of {tokens} tokens (limit: {MOST_PROMPTS})", hint=_FEWER)
    return trace


@dataclass
class TraceLoad(WatchedLoad):
    """A trace against an endpoint whose longest sequence has `context` tokens."""

    trace: Trace
    context: int
    around: int = field(init=False)
    """Tokens that the chat template adds."""

    def __post_init__(self) -> None:
        """Measure how long texts become, with the beginning of the longest prompt. Raises EndpointError."""
        super().__post_init__()
        # a letter is a token
        self.around = self.endpoint.chat("a", max_tokens=1).prompt_tokens - 1
        number, line = max(self.trace.requests, key=lambda one: one[1].input_length)
        size = min(line.input_length, LONGEST_MEASURED)
        text = self.texts([(number, line.model_copy(update={"input_length": size}))])[0]
        tokens = self.endpoint.chat(text, max_tokens=1).prompt_tokens - self.around
        if tokens <= 0:
            raise EndpointError(f"a prompt of {len(text)} characters has {tokens} tokens: it is cut")
        self.characters = len(text) / tokens

    def texts(self, requests: Sequence[tuple[int, TraceLine]]) -> list[str]:
        """The prompt of each request: after a session that is new, so that no run finds the last one in the cache."""
        session, blocks = f"Session {token_hex(4)}.\n", dict[str, str]()
        whole, room = int(BLOCK * self.characters), (1 - SPARE) * self.context
        made = []
        for number, line in requests:
            size = max(int((min(line.input_length, room - line.output_length) - self.around) * self.characters), 1)
            names = [f"{one}" for one in line.hash_ids] or [
                f"{number}.{at}" for at in range(ceil(line.input_length / BLOCK))
            ]
            for name in names:
                blocks.setdefault(name, text_of("file", name, whole))
            made.append((session + "".join(map(blocks.__getitem__, names)))[:size])
        return made

    def bodies(self) -> list[bytes]:
        """The request of each line, whose answer has all of its tokens."""
        prompts = zip(self.texts(self.trace.requests), self.trace.lines, strict=True)
        lines = (PromptLine(prompt=text, max_tokens=line.output_length) for text, line in prompts)
        # vLLM, SGLang and llama.cpp take it
        return [streaming_body(one.body(self.endpoint.model, self.limits) | {"ignore_eos": True}) for one in lines]

    def run(self) -> TurnLoad:
        """All requests, each at its time."""
        return asyncio.run(self._replay(self.bodies()))

    async def _replay(self, bodies: Sequence[bytes]) -> TurnLoad:
        async with self.endpoint.async_session(MOST_OPEN) as session:
            began = time.perf_counter() + LEAD_S

            async def send(at: float, body: bytes) -> TimedCompletion:
                await asyncio.sleep(began + at - time.perf_counter())
                return await time_completion(session, body)

            return await self.watched(1, list(map(send, self.trace.times, bodies)))
