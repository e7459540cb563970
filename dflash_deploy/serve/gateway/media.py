"""Limits the pictures, sounds and videos of a request, and passes none on by address.

Their number and size are checked before an engine sees them. An engine that is given an address fetches it: llama.cpp
from any host, vLLM and SGLang from the hosts in an argument, and SGLang reads a path as a file of its machine. So only
what a request contains is passed on. The gateway itself fetches what is at a host in ALLOWED_MEDIA_DOMAINS.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_deploy.serve.gateway.asgi import MIB, ErrorAnswer
from dflash_deploy.serve.gateway.body import IN_A_THREAD, Request
from dflash_deploy.serve.gateway.fetch import Fetched, fetch
from dflash_deploy.serve.settings import MOST_MEGAPIXELS, Settings

MEGA = 1_000_000

# Of pictures, as Pillow names them. Others are refused, because their size is not known.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

# Fields with an address, or with an object that has it as `url`: OpenAI's chats and responses, and vLLM's own.
ADDRESSES = frozenset({"image_url", "video_url", "audio_url", "file_url"})

# Fields with media, or with lists of them: of llama.cpp's /completion, SGLang's /generate and embeddings.
CONTENTS = frozenset({"multimodal_data", "image_data", "video_data", "audio_data", "image", "images", "video", "audio"})

SOUNDS = frozenset({"input_audio", "input_video"})  # fields with an object that has the content as `data`
UNMEASURED = frozenset({"video_url", "audio_url", "file_url", "video_data", "audio_data", "video", "audio"}) | SOUNDS

MOST_IMAGES = 16  # pictures, sounds and videos of one request if LIMIT_IMAGES_PER_PROMPT is empty
HEADER = 1 << 20  # characters of a content that hold its size, but for odd files. A multiple of 4.

# Fields of a request in which no engine looks for media.
NOT_READ = frozenset({"tools", "response_format", "metadata", "json_schema", "structured_outputs"})

_DATA = re.compile(r"data:([a-z0-9.+-]*)/?[^,]*;base64,", re.IGNORECASE)
_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):", re.IGNORECASE)


@dataclass(frozen=True)
class Medium:
    """Where a request names one picture, sound or video: `holder[name]`."""

    holder: Any
    name: str | int
    measured: bool = True

    @property
    def text(self) -> object:
        """The address or the content."""
        return self.holder[self.name]

    def put(self, found: Fetched) -> None:
        """Put other content in its place."""
        content = base64.b64encode(found.content).decode()
        if isinstance(self.holder, dict) and self.holder.get("type") in {"url", "base64"}:
            # Anthropic's format
            self.holder.clear()
            self.holder.update({"type": "base64", "media_type": found.kind, "data": content})
        elif _scheme(self.text):
            self.holder[self.name] = f"data:{found.kind};base64,{content}"
        else:
            self.holder[self.name] = content


class Media:
    """What a deployment lets requests contain."""

    def __init__(self, environment: Mapping[str, str], decoded: Collection[str] = ()) -> None:
        """`decoded`: the formats that the engine reads; pictures of the others of FORMATS become PNG. Empty: all.

        Raises Refused for a setting that is not valid.
        """
        self._decoded = frozenset(decoded or FORMATS)
        self._most = Settings.limit_images_per_prompt.read(environment) or MOST_IMAGES
        self._pixels = Settings.max_image_megapixels.read(environment) * MEGA
        self._domains = Settings.allowed_media_domains.read(environment)
        self._bytes = Settings.max_body_mib.read(environment) * MIB

    async def check(self, request: Request) -> None:
        """Raises ErrorAnswer for media beyond the limits, and for an address that must not be fetched.

        The content of one that may be fetched takes the place of the address.
        """
        places = list(_places(request.said))
        if len(places) > self._most:
            said = f"{len(places)} pictures in one request: this endpoint takes {self._most}"
            raise ErrorAnswer(400, f"{said} ({Settings.limit_images_per_prompt})", "too_many_images")
        remote = [place for place in places if _scheme(place.text) not in {"", "data"}]
        for place, found in zip(remote, await self._fetched(remote), strict=True):
            place.put(found)
        places = list(_places(request.said)) if remote else places
        if len(request.body) < IN_A_THREAD and not remote:
            odd = self._measure(request, places)
        else:
            odd = await asyncio.to_thread(self._measure, request, places)
        for place in odd:
            place.put(await asyncio.to_thread(_as_png, str(place.text)))
        if remote or odd:
            await asyncio.to_thread(request.rewrite)

    async def _fetched(self, places: list[Medium]) -> list[Fetched]:
        return list(await asyncio.gather(*(fetch(str(place.text), self._domains, self._bytes) for place in places)))

    def _measure(self, request: Request, places: list[Medium]) -> list[Medium]:
        """Check the pixels of all pictures; returns the pictures that the engine does not decode."""
        odd = []
        for place in places:
            request.media += len(str(place.text))
            if not place.measured:
                continue
            pixels, kind = _measured(str(place.text))
            request.pixels += pixels
            if kind not in self._decoded:
                odd.append(place)
            if request.pixels > self._pixels:
                most = self._pixels // MEGA
                said = f"the pictures have more than {most} million pixels ({Settings.max_image_megapixels})"
                raise ErrorAnswer(400, said, "image_too_large")
        return odd


def _places(said: Any) -> Iterator[Medium]:
    """Where a request names media. Without recursion: a request may be nested deeper than Python's stack."""
    waiting: list[Any] = [said]
    if isinstance(said, dict):
        yield from _named(said)
        waiting = [value for name, value in said.items() if name not in NOT_READ]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from _named(value)
            value = list(value.values())
        if isinstance(value, list):
            waiting.extend(part for part in value if isinstance(part, (list, dict)))


def _named(part: dict[str, Any]) -> Iterator[Medium]:
    """The media that the fields of one object name."""
    for name, value in part.items():
        measured, inner = name not in UNMEASURED, value if isinstance(value, dict) else {}
        if name in ADDRESSES | CONTENTS:
            yield from _one(part, name, measured)
            yield from _one(inner, "url", measured)
        if name in CONTENTS:
            yield from _each(value, measured)
        elif name in SOUNDS:
            yield from _one(inner, "data", measured)
        elif name == "source" and inner.get("type") == "url":
            yield from _one(inner, "url", measured)
        elif name == "source" and part.get("type") == "image":
            yield from _one(inner, "data", measured)


def _one(holder: dict[str, Any], name: str, measured: bool) -> Iterator[Medium]:
    if isinstance(holder.get(name), str) and holder[name]:
        yield Medium(holder, name, measured)


def _each(value: object, measured: bool) -> Iterator[Medium]:
    waiting = [value] if isinstance(value, list) else []
    while waiting:
        found = waiting.pop()
        for place, one in enumerate(found):
            if isinstance(one, str):
                yield Medium(found, place, measured)
            elif isinstance(one, list):
                waiting.append(one)
            elif isinstance(one, dict):
                yield from (inner for name in ("url", "data") for inner in _one(one, name, measured))


def _scheme(text: object) -> str:
    """The scheme of an address in lower case; empty for a content without one."""
    found = _SCHEME.match(str(text))
    return found[1].lower() if found else ""


def _measured(text: str) -> tuple[int, str]:
    """The pixels and the format of a picture in base64, with or without `data:` before it. Raises ErrorAnswer."""
    content = _content(text)
    try:
        return _size(content[:HEADER])
    except ErrorAnswer:
        if len(content) <= HEADER:
            raise
    return _size(content)


def _content(text: str) -> str:
    data = _DATA.match(text)
    return text[data.end() :] if data else text


def _decoded(content: str) -> io.BytesIO:
    try:
        return io.BytesIO(base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        raise ErrorAnswer(400, "a picture is not a data URI in base64", "invalid_image") from None


def _size(content: str) -> tuple[int, str]:
    picture = _decoded(content)
    # here: the gateway of text models needs no Pillow
    from PIL import Image, UnidentifiedImageError

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    try:
        with Image.open(picture, formats=FORMATS) as opened:
            return int(opened.width * opened.height), str(opened.format)
    except Image.DecompressionBombError:
        # above twice Pillow's own limit, and so above any limit here
        return MOST_MEGAPIXELS * MEGA + 1, FORMATS[0]
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise ErrorAnswer(
            400, f"a picture is in no format that this endpoint reads ({known})", "invalid_image"
        ) from None
    except (OSError, ValueError, SyntaxError):
        raise ErrorAnswer(400, "a picture is damaged", "invalid_image") from None


def _as_png(text: str) -> Fetched:
    """The first frame of a measured picture, as PNG. Raises ErrorAnswer for a damaged one."""
    from PIL import Image

    written = io.BytesIO()
    try:
        with Image.open(_decoded(_content(text)), formats=FORMATS) as opened:
            plain = opened if opened.mode in {"RGB", "RGBA", "L"} else opened.convert("RGB")
            # it stays on this machine, where time matters and size does not
            plain.save(written, "PNG", compress_level=1)
    except (OSError, ValueError, SyntaxError):
        raise ErrorAnswer(400, "a picture is damaged", "invalid_image") from None
    return Fetched(written.getvalue(), "image/png")
