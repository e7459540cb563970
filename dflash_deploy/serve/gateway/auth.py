"""The gateway in front of vLLM's server: every route but the liveness route requires an API key.

vLLM checks keys only on paths that begin with /v1, /v2, /inference and /cohere (0.32 and 0.33,
entrypoints/serve/middleware/authenticate.py). All other routes are open, among them /invocations, which answers chat
requests. This gateway has one open route instead of a list of closed ones, so it also closes routes of later releases.

vLLM loads it as `--middleware`; the last middleware named is the outermost. vLLM's own check stays behind it, and knows
only `Authorization: Bearer` with the first key. So every admitted request is passed on with exactly that header.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

from dflash_deploy.serve.gateway.asgi import App, Receive, Scope, Send, answer_error, header_values
from dflash_deploy.serve.gateway.body_limit import MIB, BodyLimit
from dflash_deploy.serve.secrets import api_keys
from dflash_deploy.serve.settings import Settings

LIVENESS = "/health"
"""The one open path, for the container's health check and for load balancers."""

AUTHORIZATION, X_API_KEY = b"authorization", b"x-api-key"
"""The headers that carry a key: the first is sent by OpenAI's clients, the second by Anthropic's."""

POLICY_VIOLATION = 1008
"""The close code of RFC 6455 for a refused websocket; before the handshake servers turn it into a 403."""


class DenyByDefault:
    """An ASGI middleware that admits requests with a known key and GET and HEAD of /health, and refuses all others.

    The path must be exactly /health as the router sees it, after %-decoding: a path with a proxy's prefix, a doubled
    slash or `..` is another path. A key is sent as `Authorization: Bearer KEY` or as `x-api-key: KEY`. A request must
    have one key: the same header twice, or two headers with different keys, is refused. CORS preflights are refused
    too: they carry no key, and vLLM 0.32 allows no other origin unless it is configured.
    """

    preflights = False
    """Whether a browser may ask which origins are allowed. vLLM's CORS layer answers that itself, without a route."""

    def __init__(self, app: App, environment: Mapping[str, str] = os.environ) -> None:
        """Raises Refused if the environment has no valid key."""
        self._app = app
        keys = api_keys(environment)
        self._known = [sha256(key.encode()).digest() for key in keys]
        self._first = b"Bearer " + keys[0].encode()
        self._limited = BodyLimit(app, Settings.max_body_mib.read(environment) * MIB)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the server's own start and end (`lifespan`)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] not in {"http", "websocket"}:
            raise ValueError(f"unknown type of connection: {scope['type']}")
        if self._has_known_key(scope):
            # in a copy: the server may log its own scope
            scope = {**scope, "headers": self._with_first_key(scope)}
        elif not self._is_open(scope):
            await _refuse(scope, send)
            return
        app = self._limited if scope["type"] == "http" else self._app
        await app(scope, receive, send)

    def _has_known_key(self, scope: Scope) -> bool:
        key = _key_of(scope)
        if key is None:
            return False
        # digests have equal lengths and all of them are compared, so the time reveals nothing about the keys
        digest = sha256(key).digest()
        return sum(compare_digest(digest, known) for known in self._known) > 0

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        if scope["method"] in {"GET", "HEAD"}:
            return bool(scope["path"] == LIVENESS)
        return self.preflights and _is_preflight(scope)

    def _with_first_key(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        others = [(name, value) for name, value in scope["headers"] if name not in {AUTHORIZATION, X_API_KEY}]
        return [*others, (AUTHORIZATION, self._first)]


class DenyButPreflights(DenyByDefault):
    """The same if EXTRA_ARGS names allowed origins: the browser sends a preflight first, without a key."""

    preflights = True


def _key_of(scope: Scope) -> bytes | None:
    """The one key that the request sends; `None` if it sends none, one header twice, or two different keys."""
    authorization, x_api_key = header_values(scope, AUTHORIZATION), header_values(scope, X_API_KEY)
    if len(authorization) > 1 or len(x_api_key) > 1:
        return None
    # the request's own values: comparing them with each other reveals nothing
    keys = {*map(_bearer_token, authorization), *x_api_key}
    return keys.pop() if len(keys) == 1 else None


def _bearer_token(value: bytes) -> bytes | None:
    """The token of an Authorization header; `None` for another scheme."""
    scheme, _, token = value.partition(b" ")
    return token if scheme.lower() == b"bearer" else None


def _is_preflight(scope: Scope) -> bool:
    """Whether the CORS layer answers this request itself; any other OPTIONS request would reach a route."""
    asks = header_values(scope, b"origin") and header_values(scope, b"access-control-request-method")
    return scope["method"] == "OPTIONS" and bool(asks)


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "an API key is required"})
        return
    said = "a valid API key is required: send it once, as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
    await answer_error(scope, send, 401, said, "invalid_api_key", [(b"www-authenticate", b"Bearer")])
