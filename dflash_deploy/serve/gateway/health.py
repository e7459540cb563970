"""The container's health check, without curl: does the engine listen, and does it make progress?

An engine whose core hangs still answers /health. So the check compares vLLM's counters with those of the last check:
tokens, requests, and use of the cache, which changes with each chunk of a long prompt. If nothing changed, it requests
one token: at once if requests are running, otherwise every five minutes. After five checks in a row without progress it
kills the engine's process, and Docker restarts it (`restart: unless-stopped`): at most three times an hour, then it is
left to a person.

Engines without vLLM's counters are not killed: the check only says whether they listen, and whether the gateway sees a
hang (`dflash_deploy.serve.gateway.progress`).
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
from enum import Enum
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from dflash_deploy.serve.gateway.keys import ENGINE_HANGS, says_asleep
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Settings

LISTENS, ANSWERS = 3.0, 6.0  # time limits in seconds of /health and of one token. Docker's limit for a check is ten.
HUNG_AFTER = 5  # checks in a row without progress after which the engine is killed
RESTARTS, WITHIN = 3, 3600.0  # the engine is killed at most RESTARTS times within WITHIN seconds
ASK_EVERY = 300.0  # seconds between two requests of the check to an idle engine

# What a check says of an engine that hangs and is not killed.
HANGS = "requests are in flight, and the engine does nothing"

# The memory between checks, in a directory that survives the restart; /tmp does not.
MEMORY = Path("/cache/dflash-health.json")

_COUNTS = re.compile(r"^vllm:.*$", re.MULTILINE)
_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


class Evidence(Enum):
    """What one check found."""

    COUNTED = "the counters have changed"
    GENERATED = "the counters are the same, and the engine generated a token for the check"
    FAILED = "the counters are the same, and the engine did not generate a token for the check"
    UNTESTED = "the counters are the same, and the engine is idle and answered not long ago"


@dataclass(frozen=True)
class Memory:
    """What one check leaves to the next.

    `counts` is a digest of the counters, `asked` the time when the engine last generated a token for a check, `silent`
    the number of checks in a row without progress, `restarts` the times when the engine was killed. Times are seconds
    since the epoch.
    """

    counts: str = ""
    asked: float = 0.0
    silent: int = 0
    restarts: tuple[float, ...] = field(default_factory=tuple)


def after(memory: Memory, now: float, counts: str, progress: Evidence) -> tuple[Memory, bool]:
    """The memory after a check, and whether to kill the engine. `counts` is the digest of the counters now."""
    recent = tuple(then for then in memory.restarts if now - then < WITHIN)
    match progress:
        case Evidence.COUNTED | Evidence.UNTESTED:
            return Memory(counts, memory.asked, 0, recent), False
        case Evidence.GENERATED:
            return Memory(counts, now, 0, recent), False
        case Evidence.FAILED if memory.silent + 1 >= HUNG_AFTER and len(recent) < RESTARTS:
            return Memory("", 0.0, 0, (*recent, now)), True
        case Evidence.FAILED:
            return Memory(counts, memory.asked, memory.silent + 1, recent), False


def check(port: int, environment: Mapping[str, str], place: Path = MEMORY, *, now: float | None = None) -> str:
    """What is wrong, in words; empty if nothing is. Kills an engine that hangs."""
    moment = time.time() if now is None else now
    listens, hangs, asleep = _liveness(port)
    if not listens:
        # a start takes minutes, and is not a hang
        _write(place, replace(_read(place), counts="", silent=0))
        return "the engine does not listen"
    if asleep:
        # asking for a token would wake it
        return ""
    metrics = _get(port, "/metrics", _key(environment), LISTENS) or ""
    counted = _COUNTS.findall(metrics)
    if not counted:
        # another engine than vLLM
        return HANGS if hangs else ""
    counts = sha256("\n".join(counted).encode()).hexdigest()[:16]
    before = _read(place)
    progress = Evidence.COUNTED
    if counts == before.counts:
        # with requests running or waiting, an engine with unchanged counters is not idle
        at_work = any(float(value) > 0 for value in _REQUESTS.findall(metrics))
        due = at_work or before.silent > 0 or moment - before.asked > ASK_EVERY
        progress = _asked(port, environment) if due else Evidence.UNTESTED
    memory, kill = after(before, moment, counts, progress)
    _write(place, memory)
    if kill:
        _end_engine()
        return f"{HUNG_AFTER} checks without progress: killed the engine, Docker restarts it"
    if memory.silent:
        limit = f"; {RESTARTS} restarts within an hour did not help" if len(memory.restarts) >= RESTARTS else ""
        return f"checks without progress: {memory.silent}{limit}"
    return HANGS if hangs else ""


def _asked(port: int, environment: Mapping[str, str]) -> Evidence:
    """Whether the engine generates one token now."""
    names = Settings.served_model_name.read(environment) or (Settings.model_path.text(environment),)
    body = json.dumps({"model": names[0], "prompt": "1", "max_tokens": 1})
    headers = {**_key(environment), "Content-Type": "application/json"}
    answer = _get(port, "/v1/completions", headers, ANSWERS, body)
    return Evidence.FAILED if answer is None else Evidence.GENERATED


def _key(environment: Mapping[str, str]) -> dict[str, str]:
    with contextlib.suppress(Refused):
        if key := read_secrets(environment).get(Settings.vllm_api_key.name):
            return {"Authorization": f"Bearer {key}"}
    return {}


def _liveness(port: int) -> tuple[bool, bool, bool]:
    """Whether the engine or its door listens, and whether the gateway says that it hangs, and that it is asleep."""
    status, text = _answer(port, "/health", {}, LISTENS)
    hangs = status == HTTPStatus.SERVICE_UNAVAILABLE and ENGINE_HANGS in text
    return status == HTTPStatus.OK or hangs, hangs, status == HTTPStatus.OK and says_asleep(text)


def _get(port: int, path: str, headers: Mapping[str, str], timeout: float, body: str | None = None) -> str | None:
    """The body of an answer with status 200; `None` for any other status and after the time limit."""
    status, text = _answer(port, path, headers, timeout, body)
    return text if status == HTTPStatus.OK else None


def _answer(
    port: int, path: str, headers: Mapping[str, str], timeout: float, body: str | None = None
) -> tuple[int | None, str]:
    """The status and the body of an answer; `None` after the time limit."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException):
        return None, ""
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
    """Kill the processes that the container's init started: a hung engine may ignore a milder signal."""
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
    trouble = check(Settings.dflash_port.read(os.environ), os.environ, MEMORY)
    if trouble:
        print(f"dflash: {trouble}")
    sys.exit(1 if trouble else 0)
