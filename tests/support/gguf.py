"""GGUF headers, written byte for byte as docs/gguf.md of ggml describes them."""

import struct

UINT32, FLOAT32, BOOL, TEXT, ARRAY = 4, 6, 7, 8, 9


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
