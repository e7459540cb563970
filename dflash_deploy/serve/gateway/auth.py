"""The gateway in front of vLLM's server: every route but the liveness route requires an API key.

vLLM checks keys only on paths that begin with /v1, /v2, /inference and /cohere (0.32 and 0.33,
entrypoints/serve/middleware/authenticate.py). All other routes are open, among them /invocations, which answers chat
requests. This gateway has one open route instead of a list of closed ones, so it also closes routes of later releases.

vLLM loads it as `--middleware`; the last middleware named is the outermost. vLLM's own check stays behind it, and
accepts only `Authorization: Bearer` with the first key. So every admitted request is passed on with exactly that
header.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from dflash_deploy.serve.gateway.asgi import MIB, App, ErrorAnswer, Receive, Scope, Send, header_values
from dflash_deploy.serve.gateway.body import check_head, read_for_proxy, unread
from dflash_deploy.serve.gateway.connections import guard_uvicorn
from dflash_deploy.serve.gateway.contract import NO_QUIRKS, Contract, EngineQuirks
from dflash_deploy.serve.gateway.keys import ENGINE_HANGS, LIVENESS, Accepted, Keyring, opens
from dflash_deploy.serve.gateway.media import Media
from dflash_deploy.serve.gateway.metering import Asks, KeyCounters, Metered, asks_of_vllm
from dflash_deploy.serve.gateway.origins import Origins
from dflash_deploy.serve.gateway.progress import Progress
from dflash_deploy.serve.gateway.reply import Reply
from dflash_deploy.serve.settings import Settings

AUTHORIZATION = b"authorization"  # the header in which OpenAI's clients send a key, as `Bearer KEY`

# Headers that carry a key by itself: Anthropic's clients send the first, those of Azure the second.
BARE_KEYS = (b"x-api-key", b"api-key")


# The close code of RFC 6455 for a refused websocket; before the handshake servers turn it into a 403.
POLICY_VIOLATION = 1008


class DenyByDefault:
    """An ASGI middleware that admits requests with a known key and GET and HEAD of /health, and refuses all others.

    The path must be exactly /health as the router sees it, after %-decoding: a path with a proxy's prefix, a doubled
    slash or `..` is another path. A key is sent as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`. A
    request must have one key: the same header twice, or two headers with different keys, is refused. CORS preflights
    are refused too, because they carry no key; those of ALLOWED_ORIGINS are answered here.
    """

    def __init__(
        self,
        app: App,
        environment: Mapping[str, str] = os.environ,
        *,
        asks: Asks | None = None,
        engine_key: str = "",
        quirks: EngineQuirks = NO_QUIRKS,
    ) -> None:
        """Raises Refused if the environment has no valid key, or a setting that is not valid.

        `asks`: as for `Metered`; `None`: as for vLLM, which builds its middleware without arguments. `quirks`: of the
        engine.
        `engine_key`: the key that the application has instead of the owner's. It is passed on with each admitted
        request, and admitted too: an engine may send requests to itself.
        """
        self._app = app
        self._keys = Keyring(environment, engine_key)
        self._first = b"Bearer " + (engine_key or self._keys.owner_key).encode()
        self._silent_for = Settings.hang_seconds.read(environment)
        names = Settings.served_model_name.read(environment) or (Settings.model_path.text(environment),)
        self._progress = Progress(app, self._silent_for, self._first, names[0])
        self._refusals = Refusals()
        self._counters = KeyCounters()
        self._origins = Origins(environment)
        self._most = Settings.max_body_mib.read(environment) * MIB
        asks = asks or asks_of_vllm(environment)
        contract = Contract(app, environment, quirks, self._first)
        media = Media(environment, quirks.pictures)
        self._metered = Metered(app, self._progress.silence, self._counters, contract, media, asks, self._most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the server's own start and end (`lifespan`)."""
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case "lifespan":
                # the server has begun, and accepts connections after this
                guard_uvicorn()
                await self._app(scope, receive, send)
            case other:
                raise ValueError(f"unknown type of connection: {other}")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._origins.answers(scope):
            await self._origins.answer(scope, send)
            return
        answer = Reply(scope, send, self._origins.headers(scope))
        try:
            if _is_liveness(scope) and await self._progress.hangs(scope):
                said = f"requests are in flight, and the engine has done nothing for {self._silent_for} s"
                raise ErrorAnswer(503, said, ENGINE_HANGS)
            key = self._key(scope)
            if key is not None:
                answer.name_key(key.name)
            if not _is_liveness(scope) and (refusal := self._refusal(key, scope)) is not None:
                await read_for_proxy(scope, receive, self._most)
                raise refusal
            await check_head(scope, receive, self._most)
            if key is None:
                await self._app(scope, unread(receive), answer.send)
            else:
                await self._metered.serve(key, self._opened(scope), receive, answer)
        except ErrorAnswer as refusal:
            await answer.refuse(refusal)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope)
        refusal = self._refusal(key, scope)
        if refusal is None:
            await self._app(self._opened(scope), receive, send)
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await refusal.answer(scope, send)
        else:
            # a server that cannot answer with a status
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.message})

    def _key(self, scope: Scope) -> Accepted | None:
        sent = _key_of(scope)
        return self._keys.find(sent) if sent is not None else None

    def _refusal(self, key: Accepted | None, scope: Scope) -> ErrorAnswer | None:
        """Why a request does not get to the engine; `None` if its key opens the route."""
        if key is None:
            self._counters.count_refused()
            self._refusals.say()
            said = "a valid API key is required: send it once, as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
            return ErrorAnswer(401, said, "invalid_api_key", [(b"www-authenticate", b"Bearer")])
        if not _allows(key, scope):
            said = f"the key `{key.name}` has the scope `{key.scope}`, which does not open this route"
            return ErrorAnswer(403, said, "insufficient_scope")
        return None

    def _opened(self, scope: Scope) -> Scope:
        """The scope with the first key, in a copy: the server may log its own."""
        others = [(name, value) for name, value in scope["headers"] if name not in {AUTHORIZATION, *BARE_KEYS}]
        return {**scope, "headers": [*others, (AUTHORIZATION, self._first)]}


class Refusals:
    """Says in the log how many requests came without a valid key, once a second: thousands would fill it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unsaid, self._said_at = 0, float("-inf")

    def say(self) -> None:
        """Count one request, and write a line unless one was written within the last second."""
        self._unsaid += 1
        if self._clock() - self._said_at >= 1:
            print(f"dflash: {self._unsaid} requests without a valid key since the last such line", flush=True)
            self._unsaid, self._said_at = 0, self._clock()


def _key_of(scope: Scope) -> bytes | None:
    """The one key that the request sends; `None` if it sends none, one header twice, or two different keys."""
    sent = [header_values(scope, name) for name in (AUTHORIZATION, *BARE_KEYS)]
    if any(len(values) > 1 for values in sent):
        return None
    authorization, *bare = sent
    # the request's own values: comparing them with each other reveals nothing
    keys = {*map(_bearer_token, authorization), *(value for values in bare for value in values)}
    return keys.pop() if len(keys) == 1 else None


def _bearer_token(value: bytes) -> bytes | None:
    """The token of an Authorization header; `None` for another scheme."""
    scheme, _, token = value.partition(b" ")
    return token if scheme.lower() == b"bearer" else None


def _is_liveness(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in {"GET", "HEAD"} and bool(scope["path"] == LIVENESS)


def _allows(key: Accepted, scope: Scope) -> bool:
    """Whether the key opens the route. What a websocket uses is not counted, so a key with limits opens none."""
    if scope["type"] == "http":
        return opens(key.scope, scope["method"], scope["path"])
    return key.in_flight is None and key.tokens_per_minute is None and opens(key.scope, "GET", scope["path"])
