"""No request's body is larger than was agreed, whether its length is announced or it comes in pieces."""

from __future__ import annotations

from dflash_deploy.serve.gateway.asgi import App, Message, Receive, Scope, Send, answer_error, header_values

MIB = 1 << 20


class BodyLimit:
    """An ASGI application that answers 413 to bodies above `most` bytes, and hands everything else to `app`."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        announced = _announced(scope)
        if announced is None:
            await _Counted(scope, receive, send, self._most).run(self._app)
        elif announced > self._most:
            await _refuse(scope, send, self._most)
        else:
            # the server reads no more than was announced
            await self._app(scope, receive, send)


class _Counted:
    """One request whose body comes in pieces. Past the limit the engine sees its client leave, and the client a 413."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._most = most
        self._read = 0
        self._answered = False
        self._over = False

    async def run(self, app: App) -> None:
        try:
            await app(self._scope, self._count, self._pass_on)
        except Exception:
            # what the engine makes of a client that left is of no interest here
            if not self._over:
                raise

    async def _count(self) -> Message:
        message = await self._receive() if not self._over else {"type": "http.disconnect"}
        self._read += len(message.get("body", b""))
        if self._read <= self._most or self._over:
            return message
        self._over = True
        if not self._answered:
            await _refuse(self._scope, self._send, self._most)
        return {"type": "http.disconnect"}

    async def _pass_on(self, message: Message) -> None:
        if not self._over:
            self._answered = True
            await self._send(message)


def _announced(scope: Scope) -> int | None:
    """The length of the body in bytes; `None` where there is none or another header has the last word."""
    lengths = header_values(scope, b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or header_values(scope, b"transfer-encoding"):
        return None
    # no length has more digits, and Python refuses to read thousands of them
    return int(lengths[0]) if len(lengths[0]) <= 18 else 10**18


async def _refuse(scope: Scope, send: Send, most: int) -> None:
    # the connection stays: the rest of the body is read and dropped, or a client that is still sending it would see
    # its connection reset instead of this answer
    said = f"the body is larger than the {most / MIB:g} MiB that this endpoint takes"
    await answer_error(scope, send, 413, said, "request_too_large")
