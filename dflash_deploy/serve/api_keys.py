"""The API keys of an endpoint: whose each one is, what it opens, and how much of the engine it may use.

DFLASH_API_KEYS has one entry for each key, separated by commas:

    NAME:KEY[:SCOPE][:in_flight=N][:tokens_per_minute=N]

An entry that is only a key has no name and opens everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

KEY = re.compile(r"[A-Za-z0-9_-]{16,}")  # A valid key: Compose, python-dotenv and `serve` all read it the same way

# A valid name. It is shorter than any key, so that a key in the wrong place is never shown as a name.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,14}")

NAMES = "a name has up to 15 small letters, digits, - and _; `owner` and `key-N` are taken"

OWNER = "owner"  # the name of VLLM_API_KEY, in counters

# What a key opens: every route; the routes that generate and describe models; only `GET /metrics`.
Scope = Literal["all", "infer", "metrics"]

# The scopes by their names in DFLASH_API_KEYS.
SCOPES: Mapping[str, Scope] = {scope: scope for scope in get_args(Scope)}

IN_FLIGHT, PER_MINUTE = "in_flight", "tokens_per_minute"

MOST_KEYS = 1000
LARGEST_LIMIT = 10**9  # limits of DFLASH_API_KEYS: more are a mistake


@dataclass(frozen=True)
class ApiKey:
    """One key. `in_flight` limits the requests at the same time, `tokens_per_minute` those read and generated."""

    name: str
    key: str = field(repr=False)
    scope: Scope = "all"
    in_flight: int | None = None
    tokens_per_minute: int | None = None
    named: bool = True

    def written(self) -> str:
        """The entry of DFLASH_API_KEYS."""
        if not self.named:
            return self.key
        limits = {IN_FLIGHT: self.in_flight, PER_MINUTE: self.tokens_per_minute}
        scope = () if self.scope == "infer" else (self.scope,)
        return ":".join([self.name, self.key, *scope, *(f"{name}={most}" for name, most in limits.items() if most)])


def is_name(name: str) -> bool:
    """Return whether a key may have this name."""
    return bool(NAME.fullmatch(name)) and name != OWNER and not re.fullmatch(r"key-\d+", name)


def keys_in(text: str) -> tuple[ApiKey, ...]:
    """The keys of DFLASH_API_KEYS. Raises Refused, without a part of the text: any part may be a secret."""
    entries = [entry for entry in text.split(",") if entry]
    if len(entries) > MOST_KEYS:
        raise Refused(f"{Settings.dflash_api_keys} has more than {MOST_KEYS} keys", hint="revoke some of them")
    keys = tuple(_key_of(entry, number) for number, entry in enumerate(entries, 1))
    names = [key.name for key in keys]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(
            f"{Settings.dflash_api_keys} has two keys with the name `{repeated[0]}`", hint="give each key its own name"
        )
    return keys


def api_keys(environment: Mapping[str, str]) -> tuple[ApiKey, ...]:
    """The keys that the endpoint accepts: VLLM_API_KEY, then those of DFLASH_API_KEYS.

    Raises Refused if the first is missing, or if `keys_in` refuses the others.
    """
    first = Settings.vllm_api_key.text(environment)
    if not first:
        raise Refused(
            f"{Settings.vllm_api_key} is not set, and no client can send a request without a key",
            hint=f"set {Settings.vllm_api_key} in .env",
        )
    return (ApiKey(OWNER, first), *keys_in(Settings.dflash_api_keys.text(environment)))


def _key_of(entry: str, number: int) -> ApiKey:
    name, colon, rest = entry.partition(":")
    if not colon:
        return ApiKey(f"key-{number}", _valid(entry, number), named=False)
    if not is_name(name):
        raise Refused(f"{Settings.dflash_api_keys}: entry {number} has no valid name", hint=NAMES)
    key, *further = rest.split(":")
    scope: Scope = "infer"
    limits: dict[str, int] = {}
    for part in further:
        kind, equals, most = part.partition("=")
        if part in SCOPES:
            scope = SCOPES[part]
        elif equals and kind in {IN_FLIGHT, PER_MINUTE} and _is_limit(most):
            limits[kind] = int(most)
        else:
            raise Refused(
                f"{Settings.dflash_api_keys}: the key of {name} has an unknown scope or limit",
                hint=f"a scope is all, infer or metrics; a limit is {IN_FLIGHT}=N or {PER_MINUTE}=N",
            )
    return ApiKey(name, _valid(key, number), scope, limits.get(IN_FLIGHT), limits.get(PER_MINUTE))


def _valid(key: str, number: int) -> str:
    if not KEY.fullmatch(key):
        raise Refused(
            f"{Settings.dflash_api_keys}: the key of entry {number} is too short or has other characters",
            hint="each key needs at least 16 letters, digits, - and _; separate keys with commas",
        )
    return key


def _is_limit(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= LARGEST_LIMIT
