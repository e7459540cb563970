"""The pictures of a request are counted and measured in every API's spelling, before an engine decodes one."""

import asyncio
import base64
import io
import json
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from dflash_deploy.serve.gateway.asgi import ErrorAnswer
from dflash_deploy.serve.gateway.body import parsed
from dflash_deploy.serve.gateway.media import MOST_IMAGES, Media


def picture(width: int = 8, height: int = 8, kind: str = "PNG") -> str:
    drawn = io.BytesIO()
    Image.new("RGB", (width, height)).save(drawn, kind)
    return base64.b64encode(drawn.getvalue()).decode()


def bomb(side: int) -> str:
    """A PNG of that many pixels in a few bytes: a header, and no more."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + struct.pack(">I", 0) + b"IDAT"
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + data + struct.pack(">I", zlib.crc32(b"IDAT"))).decode()


SMALL = picture()


def data(content: str, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{content}"


SPELLINGS: dict[str, Any] = {
    "chat": lambda it: {"messages": [{"content": [{"type": "image_url", "image_url": {"url": it}}]}]},
    "chat without an object": lambda it: {"messages": [{"content": [{"type": "image_url", "image_url": it}]}]},
    "chat without a type": lambda it: {"messages": [{"content": [{"image_url": it}]}]},
    "responses": lambda it: {"input": [{"content": [{"type": "input_image", "image_url": it}]}]},
    "computer call": lambda it: {"input": [{"type": "computer_call_output", "output": {"image_url": it}}]},
    "messages": lambda it: {
        "messages": [{"content": [{"type": "image", "source": {"type": "url", "url": it}}]}],
    },
    "tool result": lambda it: {
        "messages": [
            {"content": [{"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": it}}]}]}
        ],
    },
    "completion": lambda it: {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [it]}},
    "completions": lambda it: {"prompt": ["a", {"prompt_string": "<__media__>", "multimodal_data": [it]}]},
    "generate": lambda it: {"text": "a", "image_data": it},
    "generate, several": lambda it: {"text": ["a"], "image_data": [[[it]]]},
    "generate, with an object": lambda it: {"image_data": [{"url": it}]},
    "embeddings": lambda it: {"input": [{"text": "a", "image": it}]},
    "video": lambda it: {"messages": [{"content": [{"type": "video_url", "video_url": {"url": it}}]}]},
    "audio": lambda it: {"messages": [{"content": [{"type": "audio_url", "audio_url": {"url": it}}]}]},
    "file": lambda it: {"input": [{"content": [{"type": "input_file", "file_url": it}]}]},
    "a list at the top": lambda it: [{"image_url": {"url": it}}],
}

REMOTE = [
    "http://127.0.0.1/",
    "https://example.com/a.png",
    " http://localhost/",
    "HTTP://2130706433/",
    "http://0177.0.0.1/",
    "http://user@127.0.0.1/",
    "file:///etc/passwd",
    "ftp://a/b",
    "gopher://a/",
]


def checked(said: Any, **environment: str) -> Any:
    request = parsed(json.dumps(said).encode())
    asyncio.run(Media(environment).check(request))
    return request


def refused(said: Any, **environment: str) -> str:
    with pytest.raises(ErrorAnswer) as raised:
        checked(said, **environment)
    assert raised.value.status == 400
    return raised.value.code


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_address_reaches_an_engine(spelling: str) -> None:
    assert {refused(SPELLINGS[spelling](address)) for address in REMOTE} == {"image_url_refused"}
    # and a path of the engine's machine is no picture
    if spelling not in {"video", "audio", "file"}:
        assert refused(SPELLINGS[spelling]("/etc/passwd.png")) == "invalid_image"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_counted_and_measured(spelling: str) -> None:
    def many(count: int) -> dict[str, Any]:
        return {"messages": [SPELLINGS[spelling](data(SMALL)) for _ in range(count)]}

    request = checked(many(MOST_IMAGES))
    assert json.loads(request.body) == many(MOST_IMAGES)
    assert refused(many(MOST_IMAGES + 1)) == "too_many_images"
    assert refused(many(3), LIMIT_IMAGES_PER_PROMPT="2") == "too_many_images"
    if spelling not in {"video", "audio", "file"}:
        assert request.pixels == 64 * MOST_IMAGES
        assert refused(SPELLINGS[spelling](data(bomb(16_000)))) == "image_too_large"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_pixels_of_all_pictures_together_are_limited(kind: str) -> None:
    content = [{"image_url": {"url": data(picture(1000, 600, kind), f"image/{kind.lower()}")}} for _ in range(2)]
    assert checked({"messages": [{"content": content}]}, MAX_IMAGE_MEGAPIXELS="2").pixels == 1_200_000
    assert refused({"messages": [{"content": content}]}, MAX_IMAGE_MEGAPIXELS="1") == "image_too_large"


@pytest.mark.parametrize("side", [10_001, 14_000, 16_000, 60_000])
def test_a_bomb_is_refused_by_its_header(side: int) -> None:
    assert refused({"image_url": data(bomb(side))}) == "image_too_large"


@pytest.mark.parametrize(
    "content",
    [
        data(base64.b64encode(b"no picture at all").decode()),
        data(base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(), "image/svg+xml"),
        data(base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()),
        data("not in base64!"),
        "data:image/png,plain",
        "data:text/html;base64,PGh0bWw+",
        "data:image/png;base64,",
    ],
)
def test_what_is_no_picture_is_said_to_be_none(content: str) -> None:
    assert refused({"image_url": {"url": content}}) == "invalid_image"


def test_sounds_and_videos_are_counted_only() -> None:
    sound = [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}] * 3
    assert checked({"messages": [{"content": sound}]}).pixels == 0
    assert refused({"messages": [{"content": sound}]}, LIMIT_IMAGES_PER_PROMPT="2") == "too_many_images"
    assert checked({"messages": [{"content": [{"video_url": {"url": data("AAAA", "video/mp4")}}]}]}).pixels == 0


def test_anthropics_picture_is_measured_without_a_scheme() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": picture(100, 100)}
    assert checked({"messages": [{"content": [{"type": "image", "source": source}]}]}).pixels == 10_000


def test_addresses_that_no_engine_fetches_are_left_alone() -> None:
    said = {
        "messages": [
            {"role": "user", "content": "see http://127.0.0.1/"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": '{"url": "http://a/"}'}}]},
            {"role": "user", "content": [{"type": "text", "text": "image_url: http://a/"}]},
        ],
        "input": [{"content": [{"annotations": [{"type": "url_citation", "url": "https://example.com/"}]}]}],
        "tools": [{"function": {"parameters": {"properties": {"image": "http://a/"}}}}],
        "response_format": {"json_schema": {"schema": {"$id": "https://example.com/", "image_url": "http://a/"}}},
    }
    assert json.loads(checked(said).body) == said
