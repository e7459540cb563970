"""GGUF headers, written byte for byte as docs/gguf.md of ggml describes them, and the tensors behind them."""

import math
import random
import struct
from pathlib import Path

from dflash_deploy.weights.gguf import parse_header

ALIGNMENT = 32  # bytes to which the place of the first tensor is rounded up
UINT32, FLOAT32, BOOL, TEXT, ARRAY = 4, 6, 7, 8, 9

BFLOAT16 = 30  # the number of a type of tensors


def text(value: str) -> bytes:
    """A text: its length and its bytes."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: str | int | float | list[int] | list[str]) -> bytes:
    """A key with its value, of the type that llama.cpp writes for it."""
    if isinstance(value, str):
        return text(name) + struct.pack("<I", TEXT) + text(value)
    if isinstance(value, int):
        return text(name) + struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", FLOAT32, value)
    words = [text(one) if isinstance(one, str) else struct.pack("<I", one) for one in value]
    item = TEXT if value and isinstance(value[0], str) else UINT32
    return text(name) + struct.pack("<IIQ", ARRAY, item, len(words)) + b"".join(words)


def header(*keys: bytes, version: int = 3, tensors: int = 0) -> bytes:
    """A header without the list of its tensors."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys)) + b"".join(keys)


def tensor(name: str, kind: int, offset: int, *shape: int) -> bytes:
    """An entry of the list of tensors. `kind` is the number of its type, such as 0 for float32."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def model(architecture: str, vocabulary: list[str], **numbers: int | float | list[int]) -> bytes:
    """The header of a model: its numbers stand under its architecture, `__` for a dot."""
    own = [key(f"{architecture}.{name.replace('__', '.')}", value) for name, value in numbers.items()]
    return header(
        key("general.architecture", architecture),
        *own,
        key("tokenizer.ggml.model", "gpt2"),
        key("tokenizer.ggml.tokens", vocabulary),
        key("tokenizer.chat_template", "{{ messages }}"),
    )


def shuffle(file: Path) -> None:
    """Put the values of each matrix into a random order, so that nothing of the training is left. Norms stay."""
    content, draw = bytearray(file.read_bytes()), random.Random(20261121)
    with file.open("rb") as read:
        parse_header(read, file.name)
        entries = []
        for _ in range(struct.unpack_from("<Q", content, 8)[0]):
            read.seek(struct.unpack("<Q", read.read(8))[0], 1)
            (dimensions,) = struct.unpack("<I", read.read(4))
            *shape, kind, offset = struct.unpack(f"<{dimensions}QIQ", read.read(8 * dimensions + 12))
            entries.append((shape, kind, offset))
        begin = -(-read.tell() // ALIGNMENT) * ALIGNMENT
    for shape, kind, offset in entries:
        if len(shape) > 1:
            assert kind == BFLOAT16
            place = slice(begin + offset, begin + offset + 2 * math.prod(shape))
            values = memoryview(content)[place].cast("H").tolist()
            draw.shuffle(values)
            content[place] = struct.pack(f"<{len(values)}H", *values)
    file.write_bytes(content)
