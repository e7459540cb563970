"""The `data` of `keys`. No key is in any document."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field

from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import Count, Documented, Seconds
from dflash_deploy.serve.api_keys import Scope

Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
HttpStatus = Annotated[int, Field(ge=100, le=599)]
Limit = Annotated[int, Field(ge=1)]


class KeysShowData(Documented):
    """Where an API key is. The key itself is in no document."""

    file: str
    """Path of the file that has the key."""
    private: bool
    """Whether only its owner can read the file."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the key's SHA-256."""


class OldKeyData(Documented):
    """HTTP status of a request with the old key; null if nothing answered."""

    before: HttpStatus | None
    """Before the restart."""
    after: HttpStatus | None
    """After the restart: 401."""


class NewKeyData(Documented):
    """HTTP status of a request with the new key; null if nothing answered."""

    after: HttpStatus | None
    """After the restart: 200."""


class ProofData(Documented):
    """The proof that the endpoint rejects the old key and accepts the new one."""

    old_key: OldKeyData
    """The answers to the old key."""
    new_key: NewKeyData
    """The answer to the new key."""


class KeysRotateData(Documented):
    """A replaced API key. Neither key is in the document."""

    file: str
    """Path of the file that has the key."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the new key's SHA-256."""
    old_fingerprint: Fingerprint | None
    """The same of the old key; null if that was empty or too short."""
    restarted: bool
    """Whether an engine ran and was restarted with the new key."""
    proof: ProofData | None
    """The proof; null if no engine ran."""
    endpoint: NotRequired[str]
    """Base URL for OpenAI clients; it ends with `/v1`. Missing, as the next ones, if no engine ran."""
    model: NotRequired[str]
    """Name of the model in requests."""
    runtime: NotRequired[RuntimeName]
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    state: NotRequired[Literal["ready"]]
    """The engine has answered a request."""
    seconds: NotRequired[Seconds]
    """Seconds from the beginning of the start to the first answer."""


class NamedKeyData(Documented):
    """A further key, without its value."""

    name: str
    """Name of the key."""
    scope: Scope
    """What it opens. `infer`: routes that generate. `metrics`: GET /metrics. `all`: every route."""
    in_flight: Limit | None
    """Most requests at the same time; null without a limit."""
    tokens_per_minute: Limit | None
    """Most tokens read and generated within 60 s; null without a limit."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the key's SHA-256."""


class KeyChangeData(Documented):
    """A key that was added or revoked."""

    file: str
    """Path of the file that has the keys."""
    name: str
    """Name of the key."""
    scope: Scope
    """What it opens. `infer`: routes that generate. `metrics`: GET /metrics. `all`: every route."""
    in_flight: Limit | None
    """Most requests at the same time; null without a limit."""
    tokens_per_minute: Limit | None
    """Most tokens read and generated within 60 s; null without a limit."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the key's SHA-256."""
    status: HttpStatus | None
    """HTTP status of a request with this key now: 200 if it was added, 401 if revoked; null if no engine answers."""


class KeysListData(Documented):
    """The further keys of the deployment."""

    file: str
    """Path of the file that has the keys."""
    keys: list[NamedKeyData]
    """The keys; empty if there are none."""


class KeyUsageData(Documented):
    """What one key used since the start of the engine."""

    name: str
    """Name of the key; `owner` is the API key of the deployment."""
    requests: dict[str, Count]
    """Number of requests by HTTP status, or `cancelled` if the client left."""
    prompt_tokens: Count
    """Tokens read."""
    generation_tokens: Count
    """Tokens generated."""
    in_flight: Count
    """Requests at this moment."""


class KeysUsageData(Documented):
    """What all keys used since the start of the engine."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    keys: list[KeyUsageData]
    """The keys that were used, by name."""
