"""Records the shapes of requests for `bench --trace`: times, lengths and shared beginnings, never text (RECORD_SHAPES).

Each request that generates appends a line in the format of Mooncake's traces (kvcache-ai/Mooncake, FAST25-release),
which aiperf and guidellm replay too: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and in
`hash_ids` a number for each block of 512 tokens of the prompt. Prompts that begin alike have the same first numbers.

The numbers count the blocks in the order in which they were seen: guidellm keeps a table of that size, and they say
nothing about the text. Texts are compared by keyed digests, which stay in memory as the key does.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

from dflash_deploy.serve.settings import Settings

BLOCK = 512
"""Tokens of a block."""

STEP = 256
"""Characters after which two texts are compared: about an eighth of a block."""

MOST_STEPS = 1 << 20
"""Steps of different texts that are remembered; each takes about 150 bytes."""

MOST_RECORDED = 64 << 20
"""Bytes of all recordings in a directory."""

_PACKED = re.compile(r"[A-Za-z0-9+/=]{4096,}")
"""A picture or sound in base64."""


class Shapes:
    """One recording: a file for each gateway process, from its first request that generated."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` has the recordings; `None` if there is none to write to."""
        self._directory = directory
        self._key = token_bytes(32)
        self._known: dict[bytes, Sequence[int]] = {}
        self._blocks = 0
        self._began: float | None = None
        self._file: int | None = None
        self._size = 0
        self._most = MOST_RECORDED
        if directory is None:
            self._end("this deployment has no directory for it")

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def milliseconds(self, now: float) -> int:
        """Milliseconds since the first request, at a moment of `time.monotonic`."""
        if self._began is None:
            self._began = now
        return round(1000 * (now - self._began))

    def record(self, at: int, said: Any, prompt: int, generated: int) -> None:
        """Append a request that arrived `at` milliseconds, with the tokens of prompt and answer. `said` is its body."""
        directory = self._directory
        if directory is None or not (prompt and generated and isinstance(said, dict)):
            return
        try:
            line = {
                "timestamp": at,
                "input_length": prompt,
                "output_length": generated,
                "hash_ids": self._numbers(_text(said), prompt),
            }
            self._append(directory, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as problem:
            self._end(f"{directory} cannot be written ({problem.strerror})")
        except RecursionError:
            # a text that is nested as deep as the parser allows
            return

    def _numbers(self, text: bytes, prompt: int) -> list[int]:
        """The numbers of the prompt's blocks. Its tokens are taken to be of equal length in characters."""
        marks = self._marks(text)
        shared = next((count for count in range(len(marks), 0, -1) if marks[count - 1] in self._known), 0)
        before = self._known[marks[shared - 1]] if shared else ()
        # they are alike for half a step more, on average
        alike = (shared + 0.5) * STEP / len(text) * prompt if shared else 0
        numbers = list(before[: int(alike / BLOCK)])
        new = ceil(prompt / BLOCK) - len(numbers)
        numbers += range(self._blocks, self._blocks + new)
        self._blocks += new
        # the last block is shared only if it is whole: replays give a number one length
        whole = tuple(numbers[: prompt // BLOCK])
        self._known.update(dict.fromkeys(marks[shared:], whole))
        return numbers

    def _marks(self, text: bytes) -> list[bytes]:
        """A digest of the text up to each step."""
        hashed, marks = blake2b(key=self._key, digest_size=8), list[bytes]()
        for begin in range(0, len(text) - STEP + 1, STEP):
            hashed.update(text[begin : begin + STEP])
            marks.append(hashed.copy().digest())
        return marks

    def _append(self, directory: Path, line: bytes) -> None:
        """Write a line. Raises OSError."""
        if self._file is None:
            self._file = self._opened(directory)
        if self._size + len(line) > self._most or len(self._known) > MOST_STEPS:
            self._end(f"{directory} is full")
        elif os.write(self._file, line) < len(line):
            # a full disk: without half a line
            os.ftruncate(self._file, self._size)
            self._end("the disk is full")
        self._size += len(line)

    def _opened(self, directory: Path) -> int:
        """A new file. Raises OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._most -= sum(each.stat().st_size for each in directory.glob("*.jsonl"))
        file = directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{token_hex(2)}.jsonl"
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _end(self, why: str) -> None:
        print(f"dflash: {Settings.record_shapes}: {why}; no further requests are recorded", file=sys.stderr)
        self._directory = None
        self._known.clear()


def _text(said: dict[str, Any]) -> bytes:
    """What a prompt is made of, in the order of chat templates; without its last bracket, which a longer one lacks."""
    head = [said.get(name) for name in ("tools", "system", "instructions")]
    talk = next((said[name] for name in ("messages", "input", "prompt") if name in said), "")
    return _PACKED.sub(_digest, json.dumps(head) + json.dumps(talk)[:-1]).encode()


def _digest(packed: re.Match[str]) -> str:
    """As long as the tokens of a picture, about 300."""
    return 16 * blake2b(packed[0].encode(), digest_size=32).hexdigest()
