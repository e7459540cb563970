"""A picture to ask about, made on the spot: no file is needed, and nobody can have seen it before."""

from __future__ import annotations

import base64
import struct
import zlib


def plain_png(colour: tuple[int, int, int], width: int, height: int) -> bytes:
    """A PNG of one sRGB colour (8 bits per channel), `width` x `height` pixels."""
    row = b"\0" + bytes(colour) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * height)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(png: bytes) -> str:
    """The picture as an address that needs no network."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
