"""Generated images for questions: no file is needed, and no model has seen them before."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Literal

ShapeName = Literal["circle", "square", "triangle"]

# The ten digits, 5 dots wide and 7 dots high.
DIGITS = (
    ("01110", "10001", "10011", "10101", "11001", "10001", "01110"),
    ("00100", "01100", "00100", "00100", "00100", "00100", "01110"),
    ("01110", "10001", "00001", "00110", "01000", "10000", "11111"),
    ("11110", "00001", "00001", "01110", "00001", "00001", "11110"),
    ("00010", "00110", "01010", "10010", "11111", "00010", "00010"),
    ("11111", "10000", "11110", "00001", "00001", "10001", "01110"),
    ("01110", "10000", "10000", "11110", "10001", "10001", "01110"),
    ("11111", "00001", "00010", "00100", "00100", "00100", "00100"),
    ("01110", "10001", "10001", "01110", "10001", "10001", "01110"),
    ("01110", "10001", "10001", "01111", "00001", "00001", "01110"),
)


def plain_png(colour: tuple[int, int, int], width: int, height: int) -> bytes:
    """Return a PNG of one sRGB color (8 bits per channel), `width` x `height` pixels."""
    row = bytes(colour) * width
    return _png([row] * height, width)


def digit_png(digit: int, dot: int) -> bytes:
    """Return a PNG of one digit, black on white, centered in 9 x 11 dots of `dot` pixels."""
    blank, rows = "000000000", DIGITS[digit]
    dots = [blank, blank, *(f"00{row}00" for row in rows), blank, blank]
    lines = [b"".join(_ink(mark == "1") * dot for mark in row) for row in dots]
    return _png([line for line in lines for _ in range(dot)], 9 * dot)


def shape_png(shape: ShapeName, side: int) -> bytes:
    """Return a PNG of one filled shape, black on white, centered in `side` x `side` pixels and half as wide."""
    return _png(
        [b"".join(_ink(_inside(shape, x / side, y / side)) for x in range(side)) for y in range(side)],
        side,
    )


def _inside(shape: ShapeName, x: float, y: float) -> bool:
    """Return whether a point of the unit square is inside the shape."""
    if shape == "circle":
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25**2
    if shape == "square":
        return abs(x - 0.5) <= 0.25 and abs(y - 0.5) <= 0.25
    # the tip is at the top: the half width grows with the depth
    return 0.25 <= y <= 0.75 and abs(x - 0.5) <= (y - 0.25) / 2


def _ink(black: bool) -> bytes:
    return b"\x00\x00\x00" if black else b"\xff\xff\xff"


def _png(rows: Sequence[bytes], width: int) -> bytes:
    """Return rows of three bytes per pixel as a PNG."""
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    content = b"".join(b"\0" + row for row in rows)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(content)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(png: bytes) -> str:
    """Return the PNG as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def image_and_question(png: bytes, question: str) -> list[Mapping[str, object]]:
    """Return the content of a message that asks about an image, sent as a data URI."""
    return [
        {"type": "image_url", "image_url": {"url": data_uri(png)}},
        {"type": "text", "text": question},
    ]
