"""An application behind the lock of the gateway, and connections to it without a server."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dflash_deploy.serve.gateway.asgi import App, Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault

FIRST, SECOND, THIRD = "the-first-key", "the-second-key-here", "the-third-key-here-"
KEYS = {"VLLM_API_KEY": FIRST, "DFLASH_API_KEYS": f"{SECOND},{THIRD}", "MAX_BODY_MIB": "1"}
LIMIT = 1 << 20

Headers = list[tuple[bytes, bytes]]


@dataclass
class Engine:
    """An application behind the lock: it reads the whole body, then answers 200 with the number of bytes."""

    seen: list[Scope] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        if scope["type"] != "http":
            await send({"type": f"{scope['type']}.done"})
            return
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left")
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})


def talk(app: App, scope: Scope, pieces: Iterable[bytes] = ()) -> list[Message]:
    """What the application sends over one connection whose body comes in these pieces."""
    body = list(pieces)
    sent: list[Message] = []

    async def receive() -> Message:
        if not body:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": body.pop(0), "more_body": bool(body)}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(_run(app, scope, receive, send))
    return sent


async def _run(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def request(path: str = "/v1/models", method: str = "GET", headers: Headers | None = None, **more: Any) -> Scope:
    """An HTTP request, as ASGI describes it."""
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": headers or [], **more}


def bearer(key: str) -> Headers:
    """The header of a client of OpenAI."""
    return [(b"authorization", f"Bearer {key}".encode())]


def lock(engine: Engine, environment: dict[str, str] | None = None) -> DenyByDefault:
    """The lock in front of an application, with the keys of these tests unless others are given."""
    return DenyByDefault(engine, KEYS if environment is None else environment)


def status(sent: list[Message]) -> int:
    """The status of a whole answer."""
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return int(sent[0]["status"])


def denied(scope: Scope, app: type[DenyByDefault] = DenyByDefault) -> bool:
    """Whether the lock answers 401 by itself."""
    engine = Engine()
    code = status(talk(app(engine, KEYS), scope))
    assert (code == 401) is (not engine.seen)
    return code == 401
