"""Logs as they are kept: gzip, as logrotate writes it, is unpacked while it is read. Other formats are named."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_deploy.errors import FileInvalid
from dflash_deploy.intake.files import shown

MOST = 1 << 20
"""Bytes that are unpacked at once: a small file may unpack to any size."""

_GZIP = b"\x1f\x8b\x08"

_OTHERS: Mapping[bytes, tuple[str, str]] = {
    b"PK\x03\x04": ("a zip archive", "unzip -p"),
    b"\xfd7zXZ\x00": ("compressed with xz", "xz -dc"),
    b"BZh": ("compressed with bzip2", "bzip2 -dc"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "zstd -dc"),
}
"""How files of other formats begin (the magic numbers in their specifications), and what unpacks them."""


def unpacked(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of a log from its blocks, in bounded memory. The end of a gzip file may be missing.

    Raises FileInvalid if it is compressed in another format, or damaged.
    """
    first = next(blocks, b"")
    for magic, (what, program) in _OTHERS.items():
        if first.startswith(magic):
            hint = f"unpack it: `{program} FILE | dflash-deploy explain -`"
            raise FileInvalid(f"{shown(path)} is {what}, which cannot be read as text", hint=hint)
    if not first.startswith(_GZIP):
        yield first
        yield from blocks
        return
    try:
        yield from _inflated(first, blocks)
    except zlib.error:
        raise FileInvalid(f"{shown(path)} is a damaged gzip file", hint="copy it again") from None


def _inflated(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip, which may have several members, one after the other. Zeros may follow the last one."""
    member, packed = _member(), first
    while packed or (packed := next(blocks, b"")):
        yield member.decompress(packed, MOST)
        packed = member.unconsumed_tail
        if member.eof:
            packed, member = member.unused_data.lstrip(b"\0"), _member()


def _member() -> zlib._Decompress:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
