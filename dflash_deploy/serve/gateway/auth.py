"""The lock in front of vLLM's server: nothing is answered without a key, except whether the process lives.

vLLM's own lock guards the paths that begin with /v1, /v2, /inference and /cohere and leaves all others open (0.32 and
0.33, entrypoints/serve/middleware/authenticate.py), /invocations among them, which answers chat requests. This one
knows a single open route instead of a list of closed ones, so that a route of the next release is closed as well.

vLLM puts it in front of its routes (`--middleware`, arguments.py); the middleware that is named last is the outermost
one. vLLM's own lock stays behind it, and takes one key. So a request with a further key goes on with the first one.
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
"""The one open path, for the container's health check and for whoever balances load."""

POLICY_VIOLATION = 1008
"""The close code of RFC 6455 for a websocket that is not let in; before the handshake servers make it a 403."""


class DenyByDefault:
    """An ASGI middleware that lets in requests with a key, GET and HEAD of /health, and nothing else.

    The path must be exactly that one as the router sees it, %-escapes undone: a route that a proxy's prefix, a doubled
    slash or `..` leads to is another path. A key comes as `Authorization: Bearer KEY`, once. Preflights of browsers
    are turned away too: they carry no key, and vLLM 0.32 answers no other origin unless told to.
    """

    preflights = False
    """Whether a browser may ask which origins are allowed. vLLM's CORS layer answers that itself, at no route."""

    def __init__(self, app: App, environment: Mapping[str, str] = os.environ) -> None:
        """Raises Refused where the environment holds no key, or one that means nothing."""
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
            raise ValueError(f"connections of the type {scope['type']} are not known here")
        which = self._which_key(scope)
        if which is None and not self._is_open(scope):
            await _turn_away(scope, send)
            return
        # only a further key needs another header; in a copy, since the server keeps its own scope
        inner = {**scope, "headers": self._with_first_key(scope)} if which else scope
        app = self._limited if scope["type"] == "http" else self._app
        await app(inner, receive, send)

    def _which_key(self, scope: Scope) -> int | None:
        """The position of the key that the request carries; `None` where it carries none that is known."""
        given = header_values(scope, b"authorization")
        if len(given) != 1:
            return None
        scheme, _, key = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        # digests have one length, and all are looked at: the time says nothing about the keys
        digest = sha256(key).digest()
        found = [position for position, known in enumerate(self._known) if compare_digest(digest, known)]
        return found[0] if found else None

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        if scope["method"] in {"GET", "HEAD"}:
            return bool(scope["path"] == LIVENESS)
        return self.preflights and _is_preflight(scope)

    def _with_first_key(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        return [*others, (b"authorization", self._first)]


class DenyButPreflights(DenyByDefault):
    """The same where EXTRA_ARGS names origins whose pages may ask: their browsers ask first, without a key."""

    preflights = True


def _is_preflight(scope: Scope) -> bool:
    """Whether this is a question that the CORS layer answers itself; any other OPTIONS would reach a route."""
    asks = header_values(scope, b"origin") and header_values(scope, b"access-control-request-method")
    return scope["method"] == "OPTIONS" and bool(asks)


async def _turn_away(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "a key is needed"})
        return
    said = "a key is needed that this endpoint knows: send it as Authorization: Bearer KEY"
    await answer_error(scope, send, 401, said, "invalid_api_key", [(b"www-authenticate", b"Bearer")])
