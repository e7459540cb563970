"""An engine that answers as vLLM and llama.cpp do, behind the real gateway: its chunks, and what a client gets."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from dflash_deploy.client.metrics import KeyUsage, read_key_usage
from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault

OWNER, ALICE, SCRAPER = "key-of-the-owner-0123", "key-of-alice-01234567", "key-of-the-scraper-01"
KEYS = {"VLLM_API_KEY": OWNER, "DFLASH_API_KEYS": f"alice:{ALICE}:in_flight=1,scraper:{SCRAPER}:metrics"}

REASONS = KEYS | {"REASONING_PARSER": "qwen3"}

CHAT = "/v1/chat/completions"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


def with_usage(chunk: bytes, generated: int) -> bytes:
    """A chunk with the usage so far, as vLLM and SGLang state it."""
    usage = b',"usage":{"prompt_tokens":7,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
    return chunk.removesuffix(b"}\n\n") + usage % (generated + 1)


def timed(generated: int, *, index: int = 0, finish: bytes = b"null") -> bytes:
    """A chunk of llama.cpp that was asked for its timings."""
    text = b'data: {"choices":[{"finish_reason":%b,"index":%d,"delta":{"content":"{\\"timings\\":{}}"}}],"id":"x"'
    timings = b',"timings":{"cache_n":4,"prompt_n":3,"prompt_ms":2.5,"predicted_n":%d}}\n\n'
    return text % (finish, index) + timings % generated


def choice(delta: bytes, finish: bytes = b"null") -> bytes:
    """A chunk of a chat of vLLM with a reasoning parser; written after its source, 0.32 and 0.33."""
    head = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":'
    return head + b'[{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b,"token_ids":null}]}\n\n' % (
        delta,
        finish,
    )


BEGIN = choice(b'"role":"assistant","content":""')
REASONED = [
    choice(b'"reasoning":"The \\"role\\": a"'),
    choice(b'"reasoning":" \\"usage\\":{}"'),
    choice(b'"content":"\\n\\n"'),
    choice(b'"tool_calls":[{"id":"call_1","type":"function","index":0,"function":{"name":"role","arguments":""}}]'),
    choice(b'"tool_calls":[{"index":0,"function":{"arguments":"{\\"usage\\":1}"}}]'),
]
FINISH = choice(b"", b'"tool_calls"')
DETAILS = (
    b'"prompt_tokens":7,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":{"reasoning_tokens":3}'
)
END = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[],"usage":{'
    + DETAILS % (29, 22)
    + b',"prompt_tokens_details":{"cached_tokens":4}},"system_fingerprint":"vllm",'
    + b'"metrics":{"speculative_decoding":{}}}\n\n'
)


async def leave_after(door: DenyByDefault, sent: int, body: bytes, path: str = CHAT) -> list[bytes]:
    """What the client got of the stream, which it leaves after `sent` chunks."""
    seen: list[bytes] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            seen.append(message["body"])
            if len(seen) == sent:
                raise ConnectionResetError

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"authorization", f"Bearer {ALICE}".encode())]
    with pytest.raises(ConnectionResetError):
        await door({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
    return seen


@dataclass
class Engine:
    """Answers as vLLM 0.33 does; a stream states its usage as the request asks for it."""

    pieces: Sequence[bytes] = ()
    kind: bytes = b"application/json"
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    states: bool = True
    """Whether it adds what the request asks for; without it, `pieces` are all of the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        self.headers.append(dict(scope["headers"]))
        if self.gate is not None and scope["method"] == "POST":
            await self.gate.wait()
        headers = [(b"content-type", self.kind)]
        pieces = self.pieces
        if scope["path"] == "/metrics":
            pieces, headers = [b"vllm:num_requests_running 1.0\n"], [(b"content-length", b"30")]
        elif self.states and b'"include_usage":true' in body.replace(b" ", b"") and self.kind == b"text/event-stream":
            pieces = [*pieces[:-1], LAST, pieces[-1]]
            if json.loads(body)["stream_options"].get("continuous_usage_stats"):
                pieces = [with_usage(piece, number) if piece == CHUNK else piece for number, piece in enumerate(pieces)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, piece in enumerate(pieces, 1):
            await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


def ask(
    door: DenyByDefault,
    body: bytes | Iterable[bytes] = b"{}",
    *,
    key: str = ALICE,
    path: str = CHAT,
    method: str = "POST",
) -> tuple[int, bytes, dict[bytes, bytes]]:
    return asyncio.run(asked(door, body, key=key, path=path, method=method))


async def asked(
    door: DenyByDefault,
    body: bytes | Iterable[bytes] = b"{}",
    *,
    key: str = ALICE,
    path: str = CHAT,
    method: str = "POST",
    more: Sequence[tuple[bytes, bytes]] = (),
) -> tuple[int, bytes, dict[bytes, bytes]]:
    pieces = [body] if isinstance(body, bytes) else list(body)
    length = str(sum(map(len, pieces))).encode()
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-length", length), *more]
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": headers}
    sent: list[Message] = []

    async def receive() -> Message:
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(dict(message))

    await door(scope, receive, send)
    text = b"".join(message["body"] for message in sent[1:])
    return sent[0]["status"], text, dict(sent[0]["headers"])


def used(door: DenyByDefault, name: str = "alice") -> KeyUsage:
    _, text, _ = ask(door, b"", key=SCRAPER, path="/metrics", method="GET")
    return next((each for each in read_key_usage(text.decode()) if each.name == name), KeyUsage(name))


def stream_of(**options: object) -> bytes:
    return json.dumps({"model": "tiny", "stream": True, **options}).encode()
