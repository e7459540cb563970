"""Keeps the engines that SMG sends to the same as those of workers.json.

SMG's own discovery by file gives an engine no key, and SMG reads an engine's load only with one. So this process adds
and removes engines through SMG's administration, each with the key that opens nothing but GET /metrics. Named
completely, an engine is registered without being asked for its models.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from dflash_deploy.serve.field import VLLM
from dflash_deploy.serve.router.files import (
    MANIFEST,
    SEEN,
    RoutedEngine,
    RouterKeys,
    SeenWorker,
    read_manifest,
    replace,
    seen_of,
)

EVERY = 0.5
"""Seconds between two readings of workers.json and of SMG's list."""

AGAIN = 10.0
"""Seconds after which an engine is added again that is not listed, or removed again that is still listed."""

ANSWERS = 5.0
"""Seconds for one answer of SMG's administration."""

Call = Callable[[str, str, "Mapping[str, object] | None"], Any]
"""Sends method, path and JSON to SMG, and returns its JSON. Raises OSError, HTTPException and ValueError."""


class WorkerKeeper:
    """Adds and removes SMG's engines until they are those of the manifest."""

    def __init__(self, directory: Path, call: Call, keys: RouterKeys) -> None:
        self._directory = directory
        self._call = call
        self._keys = keys
        self._wanted: tuple[RoutedEngine, ...] = ()
        self._added: dict[str, float] = {}
        self._removed: dict[str, float] = {}
        self._said = ""

    def run(self) -> None:
        """Keep them the same for as long as the process runs."""
        while True:
            try:
                self.step()
            except (OSError, HTTPException, ValueError, KeyError, TypeError) as problem:
                self._say(f"the list of engines cannot be kept: {type(problem).__name__}: {problem}")
            time.sleep(EVERY)

    def step(self) -> None:
        """Read the manifest and SMG's list once; add and remove what differs, and write down what SMG sees."""
        with contextlib.suppress(FileNotFoundError):
            self._wanted = read_manifest(self._directory / MANIFEST)
        listed = {str(entry["url"]): entry for entry in self._call("GET", "/workers", None)["workers"]}
        wanted = {worker.url: worker for worker in self._wanted}
        # SMG removes an engine some time after it was asked. Asked twice, it also counts another engine as removed
        self._removed = {url: when for url, when in self._removed.items() if url in listed and url not in wanted}
        for url in listed.keys() - wanted.keys():
            if time.monotonic() - self._removed.get(url, -AGAIN) >= AGAIN:
                self._call("DELETE", f"/workers/{listed[url]['id']}", None)
                self._removed[url] = time.monotonic()
            self._added.pop(url, None)
        for url in wanted.keys() - listed.keys():
            if time.monotonic() - self._added.get(url, -AGAIN) >= AGAIN:
                self._call("POST", "/workers", registration(wanted[url], self._keys.probe))
                self._added[url] = time.monotonic()
        seen = [
            SeenWorker(url, entry.get("is_healthy") is True, int(entry.get("load", 0)))
            for url, entry in sorted(listed.items())
        ]
        replace(self._directory / SEEN, seen_of(time.time(), seen))
        self._said = ""

    def _say(self, text: str) -> None:
        if text != self._said:
            print(f"dflash: {text}", file=sys.stderr, flush=True)
            self._said = text


def registration(worker: RoutedEngine, probe: str) -> dict[str, object]:
    """The request that adds an engine to SMG."""
    return {
        "url": worker.url,
        "api_key": probe,
        "runtime_type": VLLM,
        "connection_mode": "http",
        "models": [{"id": name} for name in worker.models],
    }


def caller(host: str, port: int, admin: str) -> Call:
    """A function that calls SMG's administration."""

    def call(method: str, path: str, body: Mapping[str, object] | None) -> Any:
        connection = HTTPConnection(host, port, timeout=ANSWERS)
        try:
            headers = {"Authorization": f"Bearer {admin}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 400:
                raise ValueError(f"SMG answers {method} {path} with {answer.status}")
            return json.loads(text) if text else {}
        finally:
            connection.close()

    return call


def keep_workers(directory: Path, host: str, port: int, keys: RouterKeys) -> None:
    """Keep SMG's engines those of the manifest, in a thread that ends with the process."""
    keeper = WorkerKeeper(directory, caller(host, port, keys.admin), keys)
    threading.Thread(target=keeper.run, name="workers", daemon=True).start()
