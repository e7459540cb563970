"""Reading a GGUF's header, written here byte for byte as docs/gguf.md of ggml describes it."""

import hashlib
import struct
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.errors import WeightsMissing
from dflash_deploy.weights.check import check_weights
from dflash_deploy.weights.gguf import HeaderEnds, NotGguf, parse_header, read_header, read_layout
from tests.support.gguf import header, key, tensor, text

NAME = text("general.architecture") + struct.pack("<I", 8)
WORDS = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("<|im_start|>") + text("ü")
LAYERS = text("dflash.target_layers") + struct.pack("<IIQ", 9, 4, 3) + struct.pack("<III", 1, 16, 31)
BLOCK = text("dflash.block_size") + struct.pack("<II", 4, 16)
SCALE = text("dflash.scale") + struct.pack("<If", 6, 0.5)


def write(directory: Path, content: bytes) -> Path:
    file = directory / "drafter.gguf"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("architecture", ["dflash", "dflash-draft"])
def test_the_architecture_and_its_numbers(tmp_path: Path, architecture: str) -> None:
    file = write(tmp_path, header(WORDS, NAME + text(architecture), LAYERS, BLOCK, SCALE))
    assert read_header(file) == {
        "general.architecture": architecture,
        "dflash.target_layers": (1, 16, 31),
        "dflash.block_size": 16,
        "dflash.scale": 0.5,
        "tokenizer.ggml.tokens.length": 2,
        "tokenizer.ggml.tokens.sha256": hashlib.sha256(b"\x0c\0\0\0<|im_start|>\x02\0\0\0\xc3\xbc").hexdigest(),
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGU",
        b"<!DOCTYPE html>",
        b"GGUF",
        header(version=1),
        header(NAME + text("dflash"))[:-3] + b"\xff\xff\xff",
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40),
        header(text("x") + struct.pack("<IQ", 8, 2**60)),
        header(text("x") + struct.pack("<I", 77)),
        header(NAME + struct.pack("<Q", 100) + b"dflash"),
    ],
)
def test_what_is_no_header_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotGguf):
        read_header(write(tmp_path, content))


WHOLE = header(WORDS, NAME + text("dflash"), LAYERS, BLOCK, SCALE)


@given(st.integers(0, len(WHOLE) - 1))
def test_a_header_that_is_cut_says_that_it_ends(end: int) -> None:
    with pytest.raises(HeaderEnds):
        parse_header(BytesIO(WHOLE[:end]), "drafter.gguf")


@given(st.binary(max_size=200), st.sampled_from([b"GGUF", header(BLOCK, tensors=3)]))
def test_any_bytes_are_a_header_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, begin: bytes
) -> None:
    file = write(tmp_path_factory.mktemp("gguf"), begin + content)
    try:
        read_header(file)
        read_layout(file)
    except NotGguf as refusal:
        assert file.name in str(refusal) or "GGUF" in str(refusal) or "text" in str(refusal)  # noqa: PT017


# A matrix of float32 and one of Q6_K, whose 256 values have 210 bytes.
LIST = header(BLOCK, tensors=2) + tensor("a", 0, 0, 8, 2) + tensor("b", 14, 64, 256, 3)


def test_a_file_has_its_tensors_behind_the_header_at_a_multiple_of_the_alignment(tmp_path: Path) -> None:
    begin = -(-len(LIST) // 32) * 32
    assert read_layout(write(tmp_path, LIST)).size == begin + 64 + 3 * 210
    aligned = header(BLOCK, key("general.alignment", 64), tensors=1) + tensor("a", 0, 0, 8)
    assert read_layout(write(tmp_path, aligned)).size == -(-len(aligned) // 64) * 64 + 32
    # of a type that is not known only the beginning is
    newer = header(tensors=1) + tensor("a", 99, 640, 8)
    assert read_layout(write(tmp_path, newer)).size == -(-len(newer) // 32) * 32 + 640
    assert read_layout(write(tmp_path, header(BLOCK))).size == len(header(BLOCK))


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_without_an_output_beside_it_is_both(tied: bool) -> None:
    names = ["token_embd.weight", *([] if tied else ["output.weight"])]
    listed = header(BLOCK, tensors=len(names)) + b"".join(tensor(name, 0, 0, 8) for name in names)
    assert parse_header(BytesIO(listed), "x.gguf", tensors=True)["tie_word_embeddings"] is tied
    parted = header(BLOCK, key("split.count", 2), tensors=1) + tensor(names[0], 0, 0, 8)
    assert "tie_word_embeddings" not in parse_header(BytesIO(parted), "x.gguf", tensors=True)


@given(st.integers(len(header(BLOCK)), len(LIST) - 1))
def test_a_list_of_tensors_that_is_cut_says_that_it_ends(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    with pytest.raises(HeaderEnds):
        read_layout(write(tmp_path_factory.mktemp("gguf"), LIST[:end]))


@pytest.mark.parametrize(
    "content",
    [
        header(tensors=2**40),
        header(tensors=1) + text("a") + struct.pack("<I", 2**31),
        header(key("general.alignment", 0)),
        header(key("general.alignment", "x")),
    ],
)
def test_a_list_of_tensors_that_no_model_has_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotGguf):
        read_layout(write(tmp_path, content))
    with pytest.raises(WeightsMissing, match=r"drafter\.gguf has a damaged header"):
        check_weights(tmp_path, role="drafter", remedy="pull", file="drafter.gguf")


def test_a_truncated_gguf_is_refused_before_an_engine_reads_it(tmp_path: Path) -> None:
    whole = LIST.ljust(-(-len(LIST) // 32) * 32, b"\0") + bytes(64 + 630)
    write(tmp_path, whole)
    check_weights(tmp_path, role="drafter", remedy="pull", file="drafter.gguf")
    for cut, said in ((1, f"is truncated: {len(whole) - 1} of {len(whole)} bytes"), (750, "truncated in its header")):
        write(tmp_path, whole[:-cut])
        with pytest.raises(WeightsMissing, match=said):
            check_weights(tmp_path, role="drafter", remedy="pull", file="drafter.gguf")


def test_a_gguf_is_looked_for_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match=r"drafter\.gguf is missing") as missing:
        check_weights(tmp_path, role="drafter", file="drafter.gguf", remedy="hf download x")
    assert "hf download x" in missing.value.hint
    for content, said in ((b"<!DOCTYPE html>", "is an HTML page"), (b"PK\x03\x04", "not a GGUF file")):
        write(tmp_path, content)
        with pytest.raises(WeightsMissing, match=said):
            check_weights(tmp_path, role="drafter", remedy="pull", file="drafter.gguf")
    write(tmp_path, header(BLOCK))
    check_weights(tmp_path, role="drafter", remedy="pull", file="drafter.gguf")
