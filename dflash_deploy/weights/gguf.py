"""The header of a GGUF file, without its tensors. Format: ggml-org/ggml docs/gguf.md, versions 2 and 3."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
MOST_KEYS = 4096
MOST_TEXT = 1 << 20
"""More keys, or a longer text, than any real header has: what is read is not a header, or it was tampered with."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

Value = str | int | float | bool


class NotGguf(ValueError):
    """Raised when a file is no GGUF, or its header is damaged."""


def read_header(path: Path) -> Mapping[str, Value | tuple[Value, ...]]:
    """The keys of the header and their values; arrays of texts, such as the vocabulary, are left out.

    Raises NotGguf, and OSError where the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise NotGguf(f"{path.name} does not start with GGUF")
        try:
            return _keys(file)
        except (struct.error, UnicodeDecodeError, KeyError) as problem:
            raise NotGguf(f"the header of {path.name} is damaged: {problem}") from None


def _keys(file: BinaryIO) -> Mapping[str, Value | tuple[Value, ...]]:
    version, _tensors, count = struct.unpack("<IQQ", file.read(20))
    if version not in {2, 3} or count > MOST_KEYS:
        raise NotGguf(f"GGUF version {version} with {count} keys is none that this reads")
    found: dict[str, Value | tuple[Value, ...]] = {}
    for _ in range(count):
        name = _text(file)
        value = _value(file, _number(file, "<I"))
        if value is not None:
            found[name] = value
    return found


def _value(file: BinaryIO, kind: int) -> Value | tuple[Value, ...] | None:
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY:
        return _plain(file, _NUMBERS[kind])
    item, length = struct.unpack("<IQ", file.read(12))
    if item == _TEXT:
        for _ in range(length):
            file.seek(_length(file), 1)
        return None
    form = _NUMBERS[item]
    size = struct.calcsize(form)
    if length > MOST_KEYS:
        file.seek(length * size, 1)
        return None
    return tuple(_plain(file, form) for _ in range(length))


def _text(file: BinaryIO) -> str:
    length = _length(file)
    raw = file.read(length)
    if len(raw) < length:
        raise NotGguf("the header ends in the middle of a text")
    return raw.decode("utf-8")


def _length(file: BinaryIO) -> int:
    length = _number(file, "<Q")
    if length > MOST_TEXT:
        raise NotGguf(f"a text of {length} bytes is none of a header")
    return length


def _number(file: BinaryIO, form: str) -> int:
    return int(_plain(file, form))


def _plain(file: BinaryIO, form: str) -> int | float | bool:
    unpack: Callable[[str, bytes], tuple[int | float | bool, ...]] = struct.unpack
    return unpack(form, file.read(struct.calcsize(form)))[0]
