"""The header of a GGUF file, without its tensors. Format: ggml-org/ggml docs/gguf.md, versions 2 and 3."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.intake.files import open_file, reading

MAGIC = b"GGUF"
MOST_KEYS = 4096
MOST_TEXT = 1 << 20
"""Limits that no real header reaches: beyond them, the file is not a GGUF or was manipulated."""

MOST_ITEMS = 1 << 21
"""Items of the longest list: a vocabulary of 250,000 tokens has as many merges."""

LONGEST = 128 * 2**20
"""Bytes of a header; the vocabulary of 250,000 tokens needs 10 MB."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

TOKENS = "tokenizer.ggml.tokens"
TOKENS_LENGTH, TOKENS_DIGEST = f"{TOKENS}.length", f"{TOKENS}.sha256"
"""Keys that replace the vocabulary: its number of tokens, and the sha256 of their texts."""

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip
"""Names of `general.file_type`, the quantization of most tensors (llama.cpp b11434, llama.h, enum llama_ftype)."""

Value = str | int | float | bool
Header = Mapping[str, Value | tuple[Value, ...]]


class NotGguf(ValueError):
    """Raised when a file is not a GGUF, or its header is damaged."""


class HeaderEnds(NotGguf):
    """Raised when the bytes end within the header: more bytes may complete it."""


def read_header(path: Path) -> Header:
    """Return the keys of the header and their values, without arrays of texts; the vocabulary as length and digest.

    Raises NotGguf, and FileRefused if the file cannot be read.
    """
    with open_file(path) as file, reading(path):
        return parse_header(file, path.name)


def parse_header(file: BinaryIO, name: str) -> Header:
    """Return the header in a stream at its beginning, like `read_header`. Raises HeaderEnds and NotGguf."""
    magic = file.read(4)
    if magic != MAGIC:
        ends = len(magic) < len(MAGIC) and MAGIC.startswith(magic)
        raise (HeaderEnds if ends else NotGguf)(f"{name} is not a GGUF file")
    try:
        return _keys(file)
    except (UnicodeDecodeError, KeyError) as problem:
        raise NotGguf(f"the header of {name} is damaged: {problem}") from None
    except struct.error:
        raise HeaderEnds(f"{name} ends within its header") from None


def _keys(file: BinaryIO) -> Header:
    version, _tensors, count = struct.unpack("<IQQ", file.read(20))
    if version not in {2, 3} or count > MOST_KEYS:
        raise NotGguf(f"GGUF version {version} with {count} keys is not supported (versions 2 and 3)")
    found: dict[str, Value | tuple[Value, ...]] = {}
    for _ in range(count):
        if file.tell() > LONGEST:
            raise NotGguf(f"the header is longer than {LONGEST} bytes")
        name = _text(file)
        kind = _number(file, "<I")
        if name == TOKENS and kind == _ARRAY:
            found[TOKENS_LENGTH], found[TOKENS_DIGEST] = _vocabulary(file)
            continue
        value = _value(file, kind)
        if value is not None:
            found[name] = value
    return found


def _vocabulary(file: BinaryIO) -> tuple[int, str]:
    """Return the number of tokens and their sha256."""
    item, length = struct.unpack("<IQ", file.read(12))
    if item != _TEXT:
        raise NotGguf(f"{TOKENS} is not a list of texts")
    digest = hashlib.sha256()
    for _ in range(_items(length)):
        token = _raw(file)
        digest.update(len(token).to_bytes(4, "little") + token)
    return length, digest.hexdigest()


def _value(file: BinaryIO, kind: int) -> Value | tuple[Value, ...] | None:
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY:
        return _plain(file, _NUMBERS[kind])
    item, length = struct.unpack("<IQ", file.read(12))
    if item == _TEXT:
        for _ in range(_items(length)):
            file.seek(_length(file), 1)
        return None
    form = _NUMBERS[item]
    size = struct.calcsize(form)
    if length > MOST_KEYS:
        file.seek(_items(length) * size, 1)
        return None
    return tuple(_plain(file, form) for _ in range(length))


def _items(length: int) -> int:
    if length > MOST_ITEMS:
        raise NotGguf(f"a list of {length} items is too long for a header (at most {MOST_ITEMS})")
    return length


def _text(file: BinaryIO) -> str:
    return _raw(file).decode("utf-8")


def _raw(file: BinaryIO) -> bytes:
    length = _length(file)
    raw = file.read(length)
    if len(raw) < length:
        raise HeaderEnds("the header ends in the middle of a text")
    return raw


def _length(file: BinaryIO) -> int:
    length = _number(file, "<Q")
    if length > MOST_TEXT:
        raise NotGguf(f"a text of {length} bytes is too long for a header (at most {MOST_TEXT})")
    return length


def _number(file: BinaryIO, form: str) -> int:
    return int(_plain(file, form))


def _plain(file: BinaryIO, form: str) -> int | float | bool:
    unpack: Callable[[str, bytes], tuple[int | float | bool, ...]] = struct.unpack
    return unpack(form, file.read(struct.calcsize(form)))[0]
