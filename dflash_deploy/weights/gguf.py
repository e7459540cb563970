"""The header of a GGUF file, without its tensors. Format: ggml-org/ggml docs/gguf.md, versions 2 and 3."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.intake.files import open_file, reading

MAGIC = b"GGUF"
MOST_KEYS = 4096
MOST_TEXT = 1 << 20  # limits that no real header reaches: beyond them, the file is not a GGUF or was manipulated

# Items of all lists together: a vocabulary of 262,000 tokens has 515,000 merges, and a kind and a score for each.
MOST_ITEMS = 1 << 22

# Characters of all names and texts together, without those in lists; a chat template has some thousands.
MOST_KEPT = 1 << 24

LONGEST = 128 * 2**20  # bytes of a header; the vocabulary of 250,000 tokens needs 10 MB
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

TOKENS = "tokenizer.ggml.tokens"
# Keys that replace the vocabulary: its number of tokens, and the sha256 of their texts.
TOKENS_LENGTH, TOKENS_DIGEST = f"{TOKENS}.length", f"{TOKENS}.sha256"

EMBEDDING = b"token_embd.weight"
# The tensor with a row for each token, and the one of the output; without it, the embedding is the output too.
OUTPUT = b"output.weight"

TIED = "tie_word_embeddings"  # key for that, as in config.json. It is missing if the file has not all tensors.

# Names of `general.file_type`, the quantization of most tensors (llama.cpp b11434, llama.h, enum llama_ftype).
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip

MOST_TENSORS, MOST_DIMENSIONS = 1 << 17, 8

# Values of a block and its bytes, by the number of the type (ggml.h, enum ggml_type; ggml-common.h). Not all of them:
# of a tensor of another type only the beginning is known.
TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 24: (1, 1),
    25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2), 39: (32, 17), 40: (64, 36),
}  # fmt: skip

Value = str | int | float | bool
Header = Mapping[str, Value | tuple[Value, ...]]


class NotGguf(ValueError):
    """Raised when a file is not a GGUF, or its header is damaged."""


class HeaderEnds(NotGguf):
    """Raised when the bytes end within the header: more bytes may complete it."""


@dataclass(frozen=True)
class Layout:
    """What a file must hold by its header. `size`: the bytes that it has at least, up to the end of its last tensor.

    `tokens` is the size of the vocabulary, `rows` that of the embedding, `None` if it is in another file. `part` is the
    number of this file, from 0, among the `parts` of a split model.
    """

    size: int
    tokens: int
    rows: int | None
    part: int
    parts: int


def read_header(path: Path, *, tensors: bool = False) -> Header:
    """Return the keys of the header and their values, without arrays of texts; the vocabulary as length and digest.

    With `tensors`, TIED is a key too. Raises NotGguf, and FileRefused if the file cannot be read.
    """
    with open_file(path) as file, reading(path):
        return parse_header(file, path.name, tensors=tensors)


def parse_header(file: BinaryIO, name: str, *, tensors: bool = False) -> Header:
    """Return the header in a stream at its beginning, like `read_header`. Raises HeaderEnds and NotGguf."""
    magic = file.read(4)
    if magic != MAGIC:
        ends = len(magic) < len(MAGIC) and MAGIC.startswith(magic)
        raise (HeaderEnds if ends else NotGguf)(f"{name} is not a GGUF file")
    try:
        header = _keys(file)
        whole = tensors and _whole(header.get("split.count")) < 2
        names = {tensor for tensor, _, _ in _tensors(file)} if whole else set()
    except (UnicodeDecodeError, KeyError) as problem:
        raise NotGguf(f"the header of {name} is damaged: {problem}") from None
    except struct.error:
        raise HeaderEnds(f"{name} ends within its header") from None
    return {**header, TIED: EMBEDDING in names and OUTPUT not in names} if whole else header


def read_layout(path: Path) -> Layout:
    """Return what a header says about its file. Raises NotGguf, and FileRefused if the file cannot be read."""
    with open_file(path) as file, reading(path):
        header = parse_header(file, path.name)
        try:
            tensors = list(_tensors(file))
        except struct.error:
            raise HeaderEnds(f"{path.name} ends within its list of tensors") from None
        alignment = header.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= MOST_KEYS:
            raise NotGguf(f"the header of {path.name} is damaged: an alignment of {alignment}")
        begin = -(-file.tell() // alignment) * alignment if tensors else file.tell()
        rows = next((rows for name, rows, _ in tensors if name == EMBEDDING), None)
        tokens, part, parts = (_whole(header.get(key)) for key in (TOKENS_LENGTH, "split.no", "split.count"))
        return Layout(begin + max((end for _, _, end in tensors), default=0), tokens, rows, part, parts)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _tensors(file: BinaryIO) -> Iterator[tuple[bytes, int | None, int]]:
    """Yield the name of each tensor, its rows (`None` without dimensions), and where it ends after the first begins.

    The stream is behind the keys.
    """
    place = file.tell()
    file.seek(8)
    (count,) = struct.unpack("<Q", file.read(8))
    file.seek(place)
    if count > MOST_TENSORS:
        raise NotGguf(f"{count} tensors are too many for a GGUF")
    for _ in range(count):
        if file.tell() > LONGEST:
            raise NotGguf(f"the header is longer than {LONGEST} bytes")
        name = _raw(file)
        if (dimensions := _number(file, "<I")) > MOST_DIMENSIONS:
            raise NotGguf(f"a tensor with {dimensions} dimensions is in no GGUF")
        *shape, kind, offset = struct.unpack(f"<{dimensions}QIQ", file.read(8 * dimensions + 12))
        block, size = TENSOR_TYPES.get(kind, (1, 0))
        yield name, shape[-1] if shape else None, offset + math.prod(shape) // block * size


class _Limits:
    """Counts the items of all lists of a header, and the bytes of its texts."""

    def __init__(self) -> None:
        self._items = MOST_ITEMS
        self._kept = MOST_KEPT

    def items(self, length: int) -> int:
        """Return the length of a list. Raises NotGguf if all lists together are longer than any real ones."""
        if length > self._items:
            raise NotGguf(f"its lists have more than {MOST_ITEMS} items, too many for a header")
        self._items -= length
        return length

    def kept(self, text: str) -> str:
        """Return a text that is kept. Raises NotGguf if all of them together are longer than any real ones."""
        self._kept -= len(text)
        if self._kept < 0:
            raise NotGguf(f"its texts have more than {MOST_KEPT} characters, too many for a header")
        return text


def _keys(file: BinaryIO) -> Header:
    limits = _Limits()
    version, _tensors, count = struct.unpack("<IQQ", file.read(20))
    if version not in {2, 3} or count > MOST_KEYS:
        raise NotGguf(f"GGUF version {version} with {count} keys is not supported (versions 2 and 3)")
    found: dict[str, Value | tuple[Value, ...]] = {}
    for _ in range(count):
        if file.tell() > LONGEST:
            raise NotGguf(f"the header is longer than {LONGEST} bytes")
        name = limits.kept(_text(file))
        kind = _number(file, "<I")
        if name == TOKENS and kind == _ARRAY:
            found[TOKENS_LENGTH], found[TOKENS_DIGEST] = _vocabulary(file, limits)
            continue
        value = _value(file, kind, limits)
        if value is not None:
            found[name] = value
    return found


def _vocabulary(file: BinaryIO, limits: _Limits) -> tuple[int, str]:
    """Return the number of tokens and their sha256."""
    item, length = struct.unpack("<IQ", file.read(12))
    if item != _TEXT:
        raise NotGguf(f"{TOKENS} is not a list of texts")
    digest = hashlib.sha256()
    for token in _texts(file, limits.items(length)):
        digest.update(len(token).to_bytes(4, "little") + token)
    return length, digest.hexdigest()


def _value(file: BinaryIO, kind: int, limits: _Limits) -> Value | tuple[Value, ...] | None:
    if kind == _TEXT:
        return limits.kept(_text(file))
    if kind != _ARRAY:
        return _plain(file, _NUMBERS[kind])
    item, length = struct.unpack("<IQ", file.read(12))
    if item == _TEXT:
        for _ in _texts(file, limits.items(length)):
            pass
        return None
    form = _NUMBERS[item]
    size = struct.calcsize(form)
    limits.items(length)
    if length > MOST_KEYS:
        file.seek(length * size, 1)
        return None
    return struct.unpack(f"<{length}{form[1]}", file.read(length * size))


def _texts(file: BinaryIO, count: int) -> Iterator[bytes]:
    """Yield the texts of a list. Raises NotGguf if they are longer than any header."""
    read, length_of, left = file.read, struct.Struct("<Q").unpack, LONGEST
    for _ in range(count):
        (length,) = length_of(read(8))
        left -= length + 8
        if length > MOST_TEXT or left < 0:
            raise _too_long(length) if length > MOST_TEXT else NotGguf(f"the header is longer than {LONGEST} bytes")
        text = read(length) if length else b""
        if len(text) < length:
            raise HeaderEnds("the header ends in the middle of a text")
        yield text


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
        raise _too_long(length)
    return length


def _too_long(length: int) -> NotGguf:
    return NotGguf(f"a text of {length} bytes is too long for a header (at most {MOST_TEXT})")


def _number(file: BinaryIO, form: str) -> int:
    return int(_plain(file, form))


def _plain(file: BinaryIO, form: str) -> int | float | bool:
    unpack: Callable[[str, bytes], tuple[int | float | bool, ...]] = struct.unpack
    return unpack(form, file.read(struct.calcsize(form)))[0]
