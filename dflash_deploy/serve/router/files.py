"""The files between the launcher and the router: the engines it shall send to, those it sends to, and its keys.

`workers.json` is written by the launcher by rename; the router's process reads it again twice a second. `seen.json` is
what the router says of its engines, and when. `keys.json` has the two keys of the router, and no key of a client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = "DFLASH_ROUTER_DIRECTORY"
"""The variable with the directory of the files."""

MANIFEST, SEEN, KEYS = "workers.json", "seen.json", "keys.json"

PROBE_NAME = "key-0"
"""The name of the router's key in the counters of the engines. No key of DFLASH_API_KEYS can have it."""

SCHEMA = 1
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class RoutedEngine:
    """An engine that the router shall send to. `models` are the names of the model in requests."""

    id: str
    url: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class SeenWorker:
    """An engine as the router sees it: its URL, whether it gets requests, and how many it has now."""

    url: str
    healthy: bool
    load: int


@dataclass(frozen=True)
class RouterKeys:
    """The router's keys: `admin` opens its own administration, `probe` only GET /metrics of the engines.

    SMG adds the key with which it probes an engine to requests that come without one, so it must open no generation.
    """

    admin: str = field(repr=False)
    probe: str = field(repr=False)


def manifest_of(workers: Iterable[RoutedEngine]) -> str:
    """The content of workers.json."""
    return json.dumps({"version": SCHEMA, "workers": [asdict(worker) for worker in workers]}, indent=1) + "\n"


def read_manifest(file: Path) -> tuple[RoutedEngine, ...]:
    """The engines in workers.json. Raises OSError, and ValueError if it is damaged."""
    document = _read(file)
    try:
        return tuple(
            RoutedEngine(str(entry["id"]), str(entry["url"]), tuple(map(str, entry["models"])))
            for entry in document["workers"]
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"{file} is damaged") from problem


def seen_of(now: float, workers: Iterable[SeenWorker]) -> str:
    """The content of seen.json. `now` is in seconds since the epoch."""
    return json.dumps({"at": now, "workers": [asdict(worker) for worker in workers]}) + "\n"


def read_seen(file: Path) -> tuple[float, tuple[SeenWorker, ...]]:
    """When the router wrote seen.json, in seconds since the epoch, and what it said. Raises OSError and ValueError."""
    document = _read(file)
    try:
        workers = tuple(
            SeenWorker(str(entry["url"]), entry["healthy"] is True, int(entry["load"])) for entry in document["workers"]
        )
        return float(document["at"]), workers
    except (KeyError, TypeError) as problem:
        raise ValueError(f"{file} is damaged") from problem


def keys_document_of(keys: RouterKeys) -> str:
    """The content of keys.json."""
    return json.dumps(asdict(keys)) + "\n"


def read_keys(file: Path) -> RouterKeys:
    """The router's keys. Raises OSError, and ValueError if the file is damaged."""
    document = _read(file)
    try:
        return RouterKeys(str(document["admin"]), str(document["probe"]))
    except KeyError as problem:
        raise ValueError(f"{file} is damaged") from problem


def replace(file: Path, text: str) -> None:
    """Write a file by rename, readable only by its owner."""
    staged = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    staged.replace(file)


def _read(file: Path) -> Mapping[str, Any]:
    with file.open("rb") as opened:
        text = opened.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"{file} is too long")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"{file} is damaged")  # noqa: TRY004 - a damaged file, as above
    return document
