"""The keys that open the endpoint, and the routes that each one opens by its scope.

The file of keys is read again as soon as it changes: a revoked key needs no restart. It holds digests of the keys, and
no key. `document_of` gives its content; the launcher writes it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

from dflash_deploy.serve.api_keys import NAME, OWNER, SCOPES, ApiKey, Scope, api_keys
from dflash_deploy.serve.settings import Settings

# The variable with the path of the file. Without it, or without the file, DFLASH_API_KEYS has the keys.
KEYS_FILE = "DFLASH_KEYS_FILE"

SCHEMA = 1
MOST_BYTES = 1 << 20  # the longest file that is read: 1000 keys take a fifth of it


@dataclass(frozen=True)
class Accepted:
    """One key that the endpoint accepts, as its SHA-256. The limits are those of `ApiKey`."""

    name: str
    digest: bytes
    scope: Scope
    in_flight: int | None = None
    tokens_per_minute: int | None = None


def accepted(key: ApiKey) -> Accepted:
    """A key without its value."""
    return Accepted(key.name, sha256(key.key.encode()).digest(), key.scope, key.in_flight, key.tokens_per_minute)


def entry_of(key: Accepted) -> dict[str, str | int | None]:
    """One key in JSON."""
    return {
        "name": key.name,
        "sha256": key.digest.hex(),
        "scope": key.scope,
        "in_flight": key.in_flight,
        "tokens_per_minute": key.tokens_per_minute,
    }


def document_of(keys: Iterable[ApiKey]) -> str:
    """The content of the file for these keys, in JSON."""
    return json.dumps({"schema": SCHEMA, "keys": [entry_of(accepted(key)) for key in keys]}, indent=1) + "\n"


class Keyring:
    """The owner's key of the environment, and the further keys of the file that DFLASH_KEYS_FILE names."""

    def __init__(self, environment: Mapping[str, str] = os.environ, engine_key: str = "") -> None:
        """Raises Refused if the environment has no valid key. `engine_key`: a second one of the owner, if not empty."""
        owner, *further = api_keys(environment)
        self.owner_key = owner.key
        self._owners = [accepted(ApiKey(OWNER, key)) for key in (owner.key, engine_key) if key]
        self._further = tuple(map(accepted, further))
        self._file = Path(environment[KEYS_FILE]) if environment.get(KEYS_FILE) else None
        self._seen: tuple[int, int, int] | None = None
        self._refresh()

    def find(self, key: bytes) -> Accepted | None:
        """Whose key it is; `None` for an unknown one. A changed file counts from this call on."""
        self._refresh()
        return whose(key, (*self._owners, *self._further))

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
        except OSError:
            return
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._further = read_accepted(self._file)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            # neither more nor fewer clients get in because of a damaged file
            said = f"{Settings.dflash_api_keys}: {self._file} cannot be read ({type(problem).__name__})"
            print(f"dflash: {said}; the keys before it stay valid", file=sys.stderr, flush=True)


def whose(key: bytes, accepted_keys: Iterable[Accepted]) -> Accepted | None:
    """Whose key it is; `None` for an unknown one."""
    # digests have equal lengths and all of them are compared, so the time reveals nothing about the keys
    digest = sha256(key).digest()
    found = [known for known in accepted_keys if compare_digest(digest, known.digest)]
    return found[0] if found else None


def read_accepted(file: Path) -> tuple[Accepted, ...]:
    """The keys of a file that `document_of` gave. Raises OSError, ValueError, KeyError, TypeError if it is damaged."""
    with file.open("rb") as opened:
        text = opened.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    document = json.loads(text)
    if document["schema"] != SCHEMA:
        raise ValueError("another schema")
    return tuple(map(_entry, document["keys"]))


def _entry(entry: Mapping[str, Any]) -> Accepted:
    digest, scope = bytes.fromhex(entry["sha256"]), entry["scope"]
    limits = entry["in_flight"], entry["tokens_per_minute"]
    if len(digest) != sha256().digest_size or scope not in SCOPES or not NAME.fullmatch(entry["name"]):
        raise ValueError("not an entry")
    if not all(limit is None or (type(limit) is int and limit > 0) for limit in limits):
        raise ValueError("not a limit")
    return Accepted(entry["name"], digest, scope, *limits)


LIVENESS = "/health"  # the one open path, for the container's health check and for load balancers
METRICS = "/metrics"

# What /health says, with status 200, of an engine that ends, has ended, or starts again (IDLE_MINUTES).
#
# Only `ASLEEP` means that its memory is free.
FALLING, ASLEEP, WAKING = "falling asleep", "asleep", "waking"


def says_asleep(health: str) -> bool:
    """Whether the body of /health says that a request that generates would wait for the engine to wake."""
    try:
        said = json.loads(health)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("status") in {FALLING, ASLEEP, WAKING}


ENGINE_HANGS = "engine_hangs"  # the code of the error that /health answers if the engine makes no progress

# The header of an answer with the name of the key. Caddy writes it to its log and takes it out.
KEY_NAME = "X-Dflash-Key"

# Routes of applications: they generate, or say what the model and its tokens are.
#
# All others are the owner's: they show or change the engine, as vLLM's /metrics, /load and /sleep do, or are another
# name of one of these.
INFERENCE = frozenset(
    {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/realtime",
        "/tokenize",
        "/detokenize",
    }
)

BELOW = ("/v1/models/", "/v1/responses/")  # paths of single models and answers begin with these


def opens(scope: Scope, method: str, path: str) -> bool:
    """Whether a key of this scope opens a route. `path` is %-decoded, as the router sees it."""
    if scope == "all":
        return True
    if scope == "metrics":
        return path == METRICS and method in {"GET", "HEAD"}
    return path in INFERENCE or (path.startswith(BELOW) and "/." not in path and "//" not in path)
