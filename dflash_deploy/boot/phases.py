"""What the engine is doing, read from its log."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("starting vLLM", re.compile(r"^dflash: vLLM ")),
    ("reading the configuration", re.compile(r"Resolved architecture|non-default args")),
    ("starting the engine process", re.compile(r"Initializing a V1 LLM engine")),
    (
        "loading weights",
        re.compile(r"Starting to load model|Loading safetensors checkpoint shards|Loading weights took"),
    ),
    ("sizing the KV cache", re.compile(r"GPU KV cache size|CPU KV cache size|Memory profiling takes")),
    ("compiling", re.compile(r"Start compiling function|Dynamo bytecode transform|torch\.compile took")),
    ("capturing CUDA graphs", re.compile(r"Capturing CUDA graph|Graph capturing finished")),
    ("warming up", re.compile(r"Warming up model|init engine .* took")),
    ("opening the endpoint", re.compile(r"Starting vLLM (API )?server|Application startup complete")),
)
"""Phases and the lines of vLLM's log (0.32, 0.33) that begin them. A start need not go through all of them."""

_LINE_PREFIX = re.compile(r"^(\([^)]*\) )?(INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\] )?")


def phase_after(lines: Iterable[str], phase: str) -> str:
    """The phase that the engine is in after writing `lines`, having been in `phase` before."""
    for line in lines:
        for name, mark in _MARKS:
            if mark.search(line):
                phase = name
    return phase


def message_of(line: str) -> str:
    """A log line without process, level, time and place."""
    return _LINE_PREFIX.sub("", line).strip()
