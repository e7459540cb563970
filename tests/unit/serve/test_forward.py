"""The door passes each chunk of an answer on as it comes, and waits for clients that read slowly."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientPayloadError, ClientResponse
from aiohttp.client_proto import ResponseHandler

from dflash_deploy.serve.door.forward import pass_back
from dflash_deploy.serve.gateway.asgi import Message

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Engine(asyncio.Transport):
    """The engine's side of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = ResponseHandler(asyncio.get_running_loop())
        self.connection.connection_made(self)
        self.connection.set_response_params(auto_decompress=False)
        self.paused = False

    def close(self) -> None:
        """As a socket does: the connection is lost in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def sends(self, *chunks: bytes) -> None:
        """Send chunks in one write."""
        self.connection.data_received(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks))

    async def response(self) -> ClientResponse:
        """What aiohttp's client makes of its answer, as far as it is read here."""
        self.connection.data_received(HEAD)
        _, content = await self.connection.read()
        connection = SimpleNamespace(protocol=self.connection)
        return cast(ClientResponse, SimpleNamespace(status=200, raw_headers=(), content=content, connection=connection))


class Client:
    """A client that may read slowly, or be gone."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = False
        self.cancelled = False

    async def send(self, message: Message) -> None:
        if self.gone:
            raise ConnectionResetError
        try:
            await self.reads.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if message.get("body"):
            self.seen.append(message["body"])


Play = Callable[[Engine, Client, asyncio.Task[None]], Awaitable[None]]


def played(play: Play) -> Client:
    """What the client has seen at the end of the play, which raises what `pass_back` raises."""

    async def run() -> Client:
        engine, client = Engine(), Client()
        task = asyncio.create_task(pass_back(await engine.response(), client.send))
        await asyncio.sleep(0)
        await play(engine, client, task)
        await asyncio.wait_for(task, 60)
        return client

    return asyncio.run(run())


async def turns() -> None:
    """Let the event loop turn until a chunk that has come is sent."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_chunk_is_sent_as_it_comes() -> None:
    async def play(engine: Engine, client: Client, _: asyncio.Task[None]) -> None:
        for number in range(3):
            engine.sends(b"%d" % number)
            await turns()
            assert client.seen[number:] == [b"%d" % number]
        engine.sends(b"x", b"y")
        engine.connection.data_received(END)

    assert played(play).seen == [b"0", b"1", b"2", b"xy"]


def test_what_comes_while_a_client_does_not_read_waits_in_order() -> None:
    async def play(engine: Engine, client: Client, task: asyncio.Task[None]) -> None:
        client.reads.clear()
        engine.sends(b"a")
        await asyncio.sleep(0)
        for number in range(40):
            engine.sends(b"%02d" % number * 10_000)
            await asyncio.sleep(0)
        assert (client.seen, engine.paused, task.done()) == ([], True, False)
        client.reads.set()
        await asyncio.sleep(0.01)
        assert not engine.paused
        engine.sends(b"z")
        await turns()
        assert client.seen[-1] == b"z"
        engine.connection.data_received(END)

    assert b"".join(played(play).seen) == b"a" + b"".join(b"%02d" % number * 10_000 for number in range(40)) + b"z"


def test_more_small_chunks_than_are_read_at_once_arrive() -> None:
    async def play(engine: Engine, *_: Any) -> None:
        engine.sends(*[b"x"] * 40_000)
        engine.connection.data_received(END)

    assert b"".join(played(play).seen) == b"x" * 40_000


def test_a_request_that_is_cancelled_cancels_the_send_that_waits() -> None:
    clients = []

    async def play(engine: Engine, client: Client, task: asyncio.Task[None]) -> None:
        clients.append(client)
        client.reads.clear()
        engine.sends(b"a")
        await asyncio.sleep(0.01)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        played(play)
    assert clients[0].cancelled


def test_a_client_that_is_gone_ends_the_request() -> None:
    async def play(engine: Engine, client: Client, _: asyncio.Task[None]) -> None:
        client.gone = True
        engine.sends(b"a")

    with pytest.raises(ConnectionResetError):
        played(play)


@pytest.mark.parametrize("problem", [None, ConnectionResetError()])
def test_an_engine_that_ends_within_an_answer_ends_the_request(problem: Exception | None) -> None:
    async def play(engine: Engine, client: Client, _: asyncio.Task[None]) -> None:
        engine.sends(b"a")
        await turns()
        assert client.seen == [b"a"]
        engine.connection.connection_lost(problem)

    with pytest.raises(ClientPayloadError):
        played(play)


@pytest.mark.parametrize("end", [lambda engine: engine.connection.data_received(b"no chunk\r\n"), Engine.close])
def test_a_connection_that_is_closed_here_ends_the_request(end: Callable[[Engine], None]) -> None:
    async def play(engine: Engine, *_: Any) -> None:
        end(engine)

    with pytest.raises((ConnectionResetError, ClientPayloadError)):
        played(play)
