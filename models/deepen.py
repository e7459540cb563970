"""`python -m models.deepen DIRECTORY`: the tiny pair for llama.cpp, with a target that costs as much as a large one.

The tiny target has 2 million parameters. llama.cpp reads them in less time than the drafter needs for a draft, so
drafts cannot pay. The written target keeps the trained layers. The layers above them pass their input on, because the
matrices that write into the residual stream are zero. Each MLP gets further neurons, which are zero too. Both add exact
zeros, so each logit keeps its bits.
"""

from __future__ import annotations

import math
import shutil
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.weights.gguf import parse_header

TINY = Path(__file__).parent / "tiny" / "gguf"
TARGET, PROJECTOR = "target.gguf", "mmproj.gguf"

LAYERS, TRAINED = 32, 8
PERIOD = 4  # layers after which the pattern of delta net and full attention repeats
NEURONS, TRAINED_NEURONS = 1536, 384  # of each MLP

SAID = f"""\
target     the tiny model with {LAYERS - TRAINED} layers above its {TRAINED}, which pass their input on: same answers,
           and a step of the target costs several times one of the drafter, as with a 27B"""

# The numbers of types in a GGUF (ggml-org/ggml docs/gguf.md): of keys, and of tensors with their bytes.
_UINT32, _BOOL, _ARRAY = 4, 7, 9
_F32, _BF16 = 0, 30
_BYTES = {_F32: 4, _BF16: 2}
_ALIGNMENT = 32

_WIDER = frozenset({"ffn_gate.weight", "ffn_up.weight"})  # a row for each neuron
_LONGER = "ffn_down.weight"  # a column for each neuron
_OUTPUTS = frozenset({"attn_output.weight", "ssm_out.weight", _LONGER})  # write into the residual stream


@dataclass(frozen=True)
class Tensor:
    """A tensor of a GGUF. The first number of `shape` is the length of a row."""

    name: str
    shape: tuple[int, ...]
    kind: int
    values: bytes

    @property
    def part(self) -> str:
        """The name within its layer."""
        return self.name.partition(".")[2].partition(".")[2]


def deepen(source: Path, written: Path) -> None:
    """Write the target of `source` with LAYERS and NEURONS to `written`, whole or not at all."""
    content = source.read_bytes()
    version, count, known = struct.unpack_from("<IQQ", content, 4)
    with source.open("rb") as file:
        parse_header(file, source.name)
        keys = content[24 : file.tell()]
        entries = [_entry(file.read) for _ in range(count)]
        begin = _aligned(file.tell())
    trained = [
        _widened(Tensor(name, shape, kind, content[begin + at : begin + at + math.prod(shape) * _BYTES[kind]]))
        for name, shape, kind, at in entries
    ]
    keys = _replaced(keys, "block_count", _number(TRAINED), _number(LAYERS))
    keys = _replaced(keys, "feed_forward_length", _number(TRAINED_NEURONS), _number(NEURONS))
    keys = _replaced(keys, "attention.recurrent_layers", _pattern(TRAINED), _pattern(LAYERS))
    tensors = [*trained, *_above(trained)]
    head, offset = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), known) + keys, 0
    for one in tensors:
        head += _text(one.name) + struct.pack(f"<I{len(one.shape)}QIQ", len(one.shape), *one.shape, one.kind, offset)
        offset += _aligned(len(one.values))
    begun = written.with_suffix(".part")
    with begun.open("wb") as file:
        file.writelines(part.ljust(_aligned(len(part)), b"\0") for part in (head, *(one.values for one in tensors)))
    begun.replace(written)


def _entry(read: Callable[[int], bytes]) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and place of the next tensor."""
    name = read(struct.unpack("<Q", read(8))[0]).decode()
    (dimensions,) = struct.unpack("<I", read(4))
    *shape, kind, place = struct.unpack(f"<{dimensions}QIQ", read(8 * dimensions + 12))
    return name, tuple(shape), kind, place


def _widened(one: Tensor) -> Tensor:
    """A matrix of an MLP with the further neurons; other tensors as they are."""
    if one.part in _WIDER:
        row, more = one.shape[0] * _BYTES[one.kind], NEURONS - TRAINED_NEURONS
        return Tensor(one.name, (one.shape[0], NEURONS), one.kind, one.values + bytes(row * more))
    if one.part == _LONGER:
        row = one.shape[0] * _BYTES[one.kind]
        rows = (one.values[at : at + row] for at in range(0, len(one.values), row))
        values = b"".join(part.ljust(NEURONS * _BYTES[one.kind], b"\0") for part in rows)
        return Tensor(one.name, (NEURONS, one.shape[1]), one.kind, values)
    return one


def _above(trained: Iterable[Tensor]) -> Iterator[Tensor]:
    """The layers that pass their input on: trained ones in 32 bits, with outputs of zero."""
    for layer in range(TRAINED, LAYERS):
        for one in trained:
            if one.name.startswith(f"blk.{layer % PERIOD}."):
                values = one.values if one.kind == _F32 else _float32(one.values)
                values = bytes(len(values)) if one.part in _OUTPUTS else values
                yield Tensor(f"blk.{layer}.{one.part}", one.shape, _F32, values)


def _float32(bfloat16: bytes) -> bytes:
    """The same numbers in 32 bits: bfloat16 is the upper half."""
    wide = array("H", bytes(2 * len(bfloat16)))
    wide[1::2] = array("H", bfloat16)
    return wide.tobytes()


def _replaced(keys: bytes, name: str, old: bytes, new: bytes) -> bytes:
    before, found, after = keys.partition(_text(f"qwen35.{name}") + old)
    if not found:
        raise ValueError(f"{name} of the tiny target is not what this module expects")
    return before + _text(f"qwen35.{name}") + new + after


def _number(value: int) -> bytes:
    return struct.pack("<II", _UINT32, value)


def _pattern(layers: int) -> bytes:
    """For each layer whether it is a delta net."""
    kinds = ((layer + 1) % PERIOD != 0 for layer in range(layers))
    return struct.pack("<IIQ", _ARRAY, _BOOL, layers) + bytes(kinds)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(TINY / PROJECTOR, directory)
    deepen(TINY / TARGET, directory / TARGET)
    print(SAID)
