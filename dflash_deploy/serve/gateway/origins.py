"""Which pages of other origins a browser lets read this endpoint's answers (CORS), on every engine.

The gateway answers the browser's question itself, so no route is open for it. What an engine says about origins is
taken out of its answers: vLLM allows all of them, and llama.cpp the one that asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dflash_deploy.serve.field import ANY_ORIGIN
from dflash_deploy.serve.gateway.asgi import Scope, Send, header_values
from dflash_deploy.serve.settings import Settings

METHODS = b"GET, POST"  # what pages may do. Nothing of the API needs more.
REMEMBERED = b"600"  # seconds for which a browser keeps the answer: a change of the setting counts after that
_HEADERS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1000}")


class Origins:
    """The origins that ALLOWED_ORIGINS names; none by default."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises Refused for an origin that is not valid."""
        self._allowed = {origin.encode() for origin in Settings.allowed_origins.read(environment)}

    def answers(self, scope: Scope) -> bool:
        """Whether a request is a browser's question from a page of an allowed origin."""
        asks = scope["method"] == "OPTIONS" and header_values(scope, b"access-control-request-method")
        return bool(asks) and self._of(scope) is not None

    async def answer(self, scope: Scope, send: Send) -> None:
        """Answer such a question."""
        headers = [
            *self.headers(scope),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", REMEMBERED),
        ]
        asked = b", ".join(header_values(scope, b"access-control-request-headers"))
        if _HEADERS.fullmatch(asked):
            headers.append((b"access-control-allow-headers", asked))
        if header_values(scope, b"access-control-request-private-network") == [b"true"]:
            # a page of the internet asks a private address: https://wicg.github.io/private-network-access
            headers.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers with which a browser lets the page that asks read the answer; none for other pages."""
        origin = self._of(scope)
        # a cache must not give one origin the answer of another
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")] if origin is not None else []

    def _of(self, scope: Scope) -> bytes | None:
        """The origin of a request if it is allowed."""
        if not self._allowed:
            return None
        sent = header_values(scope, b"origin")
        known = len(sent) == 1 and not self._allowed.isdisjoint({sent[0], ANY_ORIGIN.encode()})
        return sent[0] if known else None
