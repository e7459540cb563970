"""Pictures that a request names by address: from listed hosts only, within limits, and never from a private address
that a stranger leads to. The hosts are real servers on this machine's loopback addresses."""

import asyncio
import base64
import io
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from dflash_deploy.serve.gateway import fetch
from dflash_deploy.serve.gateway.asgi import ErrorAnswer
from dflash_deploy.serve.gateway.body import parsed
from dflash_deploy.serve.gateway.media import Media


def png(side: int = 8) -> bytes:
    drawn = io.BytesIO()
    Image.new("RGB", (side, side)).save(drawn, "PNG")
    return drawn.getvalue()


async def serve(request: web.BaseRequest) -> web.StreamResponse:
    match request.path:
        case "/picture.png":
            return web.Response(body=png(), content_type="image/png")
        case "/page":
            return web.Response(text="secret", content_type="text/html")
        case "/large":
            return web.Response(body=bytes(3 << 20), content_type="image/png")
        case "/bomb":
            return web.Response(body=png(2000), content_type="image/png")
        case "/to":
            raise web.HTTPFound(request.query["to"])
        case "/silent":
            await asyncio.Event().wait()
    raise web.HTTPNotFound


async def fetched(address: str, environment: dict[str, str]) -> Any:
    said = {"messages": [{"content": [{"type": "image_url", "image_url": {"url": address}}]}]}
    request = parsed(json.dumps(said).encode())
    await Media({"MAX_BODY_MIB": "1", **environment}).check(request)
    return json.loads(request.body)["messages"][0]["content"][0]["image_url"]["url"]


def at(path: str, check: Callable[[str], Awaitable[Any]]) -> Any:
    """Call `check` with the port of the host, which answers on all loopback addresses."""

    async def run() -> Any:
        runner = web.ServerRunner(web.Server(serve), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            return await check(f"{runner.addresses[0][1]}{path}")
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def test_a_listed_host_is_asked_and_the_engine_gets_what_it_has() -> None:
    uri = at("/picture.png", lambda rest: fetched(f"http://127.0.0.1:{rest}", {"ALLOWED_MEDIA_DOMAINS": "127.0.0.1"}))
    assert base64.b64decode(uri.removeprefix("data:image/png;base64,")) == png()


def test_anthropics_address_becomes_its_content() -> None:
    async def check(rest: str) -> Any:
        source = {"type": "url", "url": f"http://127.0.0.1:{rest}"}
        request = parsed(json.dumps({"messages": [{"content": [{"type": "image", "source": source}]}]}).encode())
        await Media({"ALLOWED_MEDIA_DOMAINS": "127.0.0.1"}).check(request)
        return json.loads(request.body)["messages"][0]["content"][0]["source"]

    expected = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    assert at("/picture.png", check) == expected


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/page", "image_not_fetched"),
        ("/large", "image_not_fetched"),
        ("/nothing", "image_not_fetched"),
        ("/silent", "image_not_fetched"),
        ("/bomb", "image_too_large"),
        ("/to?to=http://127.0.0.1/", "image_not_fetched"),
        ("/to?to=http://localhost/", "image_url_refused"),
        ("/to?to=http://169.254.169.254/", "image_url_refused"),
        ("/to?to=file:///etc/passwd", "image_url_refused"),
        ("/to?to=/to?to=/to?to=/to?to=/picture.png", "image_not_fetched"),
    ],
)
def test_what_is_no_picture_is_one_answer(path: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "/silent":
        monkeypatch.setattr(fetch, "SECONDS", 1.0)
    environment = {"ALLOWED_MEDIA_DOMAINS": "127.0.0.1", "MAX_IMAGE_MEGAPIXELS": "1"}

    async def check(rest: str) -> str:
        with pytest.raises(ErrorAnswer) as refused:
            await fetched(f"http://127.0.0.1:{rest}", environment)
        assert "secret" not in refused.value.message
        return refused.value.code

    assert at(path, check) == code


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0177.0.0.1", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_any_public_host_is_no_private_one(host: str) -> None:
    """`all`, and a redirect, do not lead into the owner's network; open ports and closed ones look the same."""

    async def check(rest: str) -> set[str]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            closed = f"{unused.getsockname()[1]}/picture.png"
            said = set()
            for where in (rest, closed):
                with pytest.raises(ErrorAnswer) as refused:
                    await fetched(f"http://{host}:{where}", {"ALLOWED_MEDIA_DOMAINS": "all"})
                said.add(f"{refused.value.code} {refused.value.message}")
            return said

    assert len(at("/picture.png", check)) == 1


def test_a_redirect_reaches_no_private_address_even_if_it_is_listed() -> None:
    async def check(rest: str) -> str:
        port = rest.partition("/")[0]
        to = f"http://127.0.0.1:{port}/picture.png"
        with pytest.raises(ErrorAnswer) as refused:
            await fetched(f"http://127.0.0.1:{port}/to?to={to}", {"ALLOWED_MEDIA_DOMAINS": "127.0.0.1"})
        return refused.value.code

    assert at("/", check) == "image_not_fetched"
