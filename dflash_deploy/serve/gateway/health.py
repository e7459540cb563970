"""The container's health check, without curl: does the engine listen, and does it still work?

An engine whose core hangs goes on answering /health. So what vLLM counts (tokens, requests, use of the cache, which
moves with each piece of a long prompt) is compared between two checks, and where nothing moved a token is asked for: at
once if requests are at work, else every five minutes. Five checks in a row without either, and the engine's process is
ended: Docker starts it anew (`restart: unless-stopped`). That is done three times an hour at the most; then it is left
for a person.

Engines that count nothing as vLLM does are only asked whether they listen: a long queue looks like a hang there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets

LISTENS, ANSWERS = 3.0, 6.0
"""Seconds for /health, and for one token. Docker ends a check after ten."""

HUNG_AFTER = 5
RESTARTS, WITHIN = 3, 3600.0
ASK_EVERY = 300.0
"""Seconds between two generations that are asked for while nobody else asks for any."""

MEMORY = Path("/cache/dflash-health.json")
"""Survives the restart; what is in /tmp does not."""

_COUNTS = re.compile(r"^vllm:.*$", re.MULTILINE)
_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """What one check leaves to the next: a digest of the counts, and when a token came that was asked for."""

    counts: str = ""
    asked: float = 0.0
    silent: int = 0
    restarts: tuple[float, ...] = field(default_factory=tuple)


def after(memory: Memory, now: float, *, counts: str, answered: bool | None) -> tuple[Memory, bool]:
    """The memory after a check, and whether the engine is to be ended.

    `counts` are the engine's now; `answered` says whether a token came that was asked for, `None`: none was.
    """
    recent = tuple(then for then in memory.restarts if now - then < WITHIN)
    if answered or counts != memory.counts or answered is None:
        asked = now if answered else memory.asked
        return Memory(counts, asked, 0, recent), False
    silent = memory.silent + 1
    end = silent >= HUNG_AFTER and len(recent) < RESTARTS
    if end:
        return Memory("", 0.0, 0, (*recent, now)), True
    return Memory(counts, memory.asked, silent, recent), False


def check(port: int, environment: Mapping[str, str], place: Path = MEMORY, *, now: float | None = None) -> str:
    """What is wrong, in words; empty where nothing is. Ends an engine that hangs."""
    moment = time.time() if now is None else now
    if _get(port, "/health", {}, LISTENS) is None:
        # a start takes minutes, and is not a hang
        _write(place, replace(_read(place), counts="", silent=0))
        return "nothing listens"
    text = _get(port, "/metrics", _key(environment), LISTENS) or ""
    counts = _digest(text)
    if not counts:
        return ""
    memory = _read(place)
    still = counts == memory.counts
    ask = still and (_at_work(text) or memory.silent > 0 or moment - memory.asked > ASK_EVERY)
    answered = _generates(port, environment) if ask else None
    memory, end = after(memory, moment, counts=counts, answered=answered)
    _write(place, memory)
    if end:
        _end_engine()
        return f"no sign of work in {HUNG_AFTER} checks: the engine is ended, to be started anew"
    if memory.silent:
        known = f", and {RESTARTS} restarts in an hour did not help" if len(memory.restarts) >= RESTARTS else ""
        return f"no sign of work in {memory.silent} checks{known}"
    return ""


def _digest(text: str) -> str:
    """A digest of what vLLM has counted; empty where it is not vLLM that counts."""
    found = _COUNTS.findall(text)
    return sha256("\n".join(found).encode()).hexdigest()[:16] if found else ""


def _at_work(text: str) -> bool:
    """Whether requests run or wait: then counts that stand still are no idleness."""
    return any(float(value) > 0 for value in _REQUESTS.findall(text))


def _generates(port: int, environment: Mapping[str, str]) -> bool:
    names = (environment.get("SERVED_MODEL_NAME") or environment.get("MODEL_PATH", "")).split()
    body = json.dumps({"model": names[0] if names else "", "prompt": "1", "max_tokens": 1})
    headers = {**_key(environment), "Content-Type": "application/json"}
    return _get(port, "/v1/completions", headers, ANSWERS, body) is not None


def _key(environment: Mapping[str, str]) -> dict[str, str]:
    with contextlib.suppress(Refused):
        if key := read_secrets(environment).get("VLLM_API_KEY"):
            return {"Authorization": f"Bearer {key}"}
    return {}


def _get(port: int, path: str, headers: Mapping[str, str], timeout: float, body: str | None = None) -> str | None:
    """The text of an answer with 200; `None` for every other, and for none within the time."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.read().decode("utf-8", "replace") if answer.status == 200 else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _read(place: Path) -> Memory:
    try:
        kept = json.loads(place.read_text(encoding="utf-8"))
        return Memory(str(kept["counts"]), float(kept["asked"]), int(kept["silent"]), tuple(kept["restarts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Memory()


def _write(place: Path, memory: Memory) -> None:
    with contextlib.suppress(OSError):
        staged = place.with_suffix(f".{os.getpid()}")
        staged.write_text(json.dumps(asdict(memory)), encoding="utf-8")
        staged.replace(place)


def _end_engine() -> None:
    """Kill what the container's init started: it may not listen to a milder signal any more."""
    for process in _children_of_init():
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _children_of_init() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # "PID (NAME) STATE PPID", and a name may hold spaces and brackets
                parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                if parent == 1:
                    yield int(entry.name)


if __name__ == "__main__":
    trouble = check(int(os.environ.get("DFLASH_PORT", "8000")), os.environ)
    if trouble:
        print(f"dflash: {trouble}")
    sys.exit(1 if trouble else 0)
