"""Clients that ask texts, pictures, streams, tools and JSON at once, and compare each answer with the usual one."""

from __future__ import annotations

import base64
import itertools
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import httpx

from dflash_deploy.client.images import plain_png
from tests.support.attacked import Endpoint, chat

CUT = "a stream that is cut"  # its answer is not compared: the client leaves after the first part
_LONG = "You answer in one short sentence. " * 20
_TOOL = {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {}}}
_SHAPE = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}


@dataclass
class Told:
    """What the clients saw: requests, failures in words, answers that differ from the usual one, and seconds."""

    usual: dict[str, str]
    asked: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    changed: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the seconds of an answer."""
        return statistics.median(self.seconds)


def requests() -> dict[str, dict[str, object]]:
    """The bodies by name. Those of one kind share a beginning, so that the prefix cache is used."""
    capitals = {name: f"What is the capital of {name}?" for name in ("France", "Italy", "Japan")}
    colours = {"red": (255, 0, 0), "blue": (0, 0, 255), "black": (0, 0, 0)}
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SHAPE}}
    return {
        **{f"text {name}": _body(ask) for name, ask in capitals.items()},
        **{f"picture {name}": _body(_shown(colour)) for name, colour in colours.items()},
        **{f"prefix {name}": _body(ask, _LONG) for name, ask in capitals.items()},
        "json": _body(capitals["Japan"], response_format=schema),
        **{f"stream {name}": _body(ask, stream=True) for name, ask in capitals.items()},
        # the tiny pair calls none, and its template has none
        "tools": _body(capitals["France"], tools=[{"type": "function", "function": _TOOL}], tool_choice="none"),
        CUT: _body("Count from 1 to 50.", stream=True),
    }


def _body(content: object, system: str = "", **more: object) -> dict[str, object]:
    before = [{"role": "system", "content": system}] if system else []
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 32}
    return {**asked, "messages": [*before, {"role": "user", "content": content}], **more}


def _shown(colour: tuple[int, int, int]) -> list[object]:
    picture = base64.b64encode(plain_png(colour, 64, 64)).decode()
    return [*chat(f"data:image/png;base64,{picture}"), {"type": "text", "text": "What colour is the image?"}]


def answer(client: httpx.Client, body: dict[str, object], *, cut: bool = False) -> str:
    """The text and the calls of an answer. Raises httpx.HTTPError for a failure."""
    if not body.get("stream"):
        answered = client.post("/v1/chat/completions", json=body)
        answered.raise_for_status()
        return _said([answered.json()["choices"][0]["message"]])
    parts: list[dict[str, Any]] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answered:
        answered.raise_for_status()
        for line in answered.iter_lines():
            if line.startswith("data: {"):
                part = json.loads(line.removeprefix("data: "))
                if "error" in part:
                    raise httpx.HTTPError(str(part["error"]))
                parts += [choice["delta"] for choice in part["choices"]]
            if cut and parts:
                break
    return _said(parts)


def _said(messages: list[dict[str, Any]]) -> str:
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return "".join(message.get("content") or "" for message in messages) + (json.dumps(calls) if calls else "")


def load(endpoint: Endpoint, clients: int, going: Callable[[Told], bool]) -> Told:
    """What the clients saw, each with one request at a time, for as long as `going` says; one more asks for health."""
    bodies = requests()
    with endpoint.client() as client:
        told = Told({name: answer(client, body) for name, body in bodies.items()})
    names, lock, end = itertools.cycle(bodies), threading.Lock(), threading.Event()

    def ask() -> None:
        with endpoint.client() as client:
            while going(told):
                with lock:
                    name = next(names)
                _ask(told, lock, client, name, bodies[name])

    def ask_for_health() -> None:
        while not end.wait(0.5):
            with endpoint.client() as client:
                begun = time.monotonic()
                client.get("/health").raise_for_status()
                told.health.append(time.monotonic() - begun)

    with ThreadPoolExecutor(clients + 1) as pool:
        health, *askers = [pool.submit(run) for run in (ask_for_health, *[ask] * clients)]
        wait(askers)
        end.set()
    # what a thread did not expect ends the test, and so does a health check that fails
    for one in (health, *askers):
        one.result()
    return told


def _ask(told: Told, lock: threading.Lock, client: httpx.Client, name: str, body: dict[str, object]) -> None:
    begun = time.monotonic()
    try:
        said, failed = answer(client, body, cut=name == CUT), ""
    except httpx.HTTPError as problem:
        said, failed = "", f"{name}: {problem!r}"
    with lock:
        told.asked += 1
        told.seconds.append(time.monotonic() - begun)
        if failed:
            told.failed[failed] += 1
        elif name != CUT and said != told.usual[name]:
            told.changed[name, said] += 1
