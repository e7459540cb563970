"""Weights, and our own files beside them, that are damaged or made to harm: refused or ignored in little time."""

import contextlib
import json
import os
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.errors import FileInvalid, LockRefused, WeightsMissing
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Checkpoints
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import check_weights
from dflash_deploy.weights.checkpoints import read_checkpoints
from dflash_deploy.weights.download import resumed
from dflash_deploy.weights.fetch import missing_files
from dflash_deploy.weights.gguf import HeaderEnds, NotGguf, parse_header, read_header
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel, parse_lock, read_lock, write_lock
from tests.support.gguf import header, text

DEEP = b"[" * 100_000
GIANT = b"9" * 10_000
JSON_DAMAGE = {
    "empty": b"",
    "zeros": b"\0" * 500,
    "deep": DEEP,
    "deep in a key": b'{"schema": 1, "models": {"target": ' + DEEP,
    "a giant number": b'{"schema": ' + GIANT + b"}",
    "not UTF-8": b'{"schema": "\xff"}',
    "UTF-16": '{"schema": 1}'.encode("utf-16"),
    "null": b"null",
    "a number": b"1",
    "a list": b"[]",
    "a text": b'"schema"',
}


def settings(directory: Path) -> Settings:
    return Settings({"MODEL_HOST_PATH": str(directory), "DRAFTER_HOST_PATH": str(directory)})


@pytest.mark.parametrize("content", JSON_DAMAGE.values(), ids=JSON_DAMAGE.keys())
def test_a_damaged_lock_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "dflash.lock"
    file.write_bytes(content)
    with pytest.raises(LockRefused) as refusal:
        read_lock(file)
    assert "dflash.lock" in refusal.value.message
    assert len(refusal.value.message) < 500
    # the next `pull` writes it again
    assert write_lock(file, Lock({}))
    assert read_lock(file) == Lock({})


@pytest.mark.parametrize(
    "value",
    [None, 7, "x", [], {}, {"repo": "o/n", "commit": "c"}, {"repo": 1, "commit": "c", "files": []}]
    + [{"repo": "o/n", "commit": "c", "files": [{"path": "a", "size": size}]} for size in (-1, 1.5, "1", True, 2**63)]
    + [{"repo": "o/n", "commit": "c", "files": [{"path": path, "size": 1}]} for path in ("../a", "/a", "", "a\0b", 1)],
)
def test_a_model_of_another_kind_in_a_lock_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "dflash.lock").write_text(json.dumps({"schema": 1, "models": {"target": value}}))
    if value is None:
        assert read_lock(tmp_path / "dflash.lock") == Lock({})
        return
    with pytest.raises(LockRefused, match="is damaged"):
        read_lock(tmp_path / "dflash.lock")


def test_a_fifo_as_lock_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dflash.lock")
    with pytest.raises(LockRefused, match="is a FIFO"):
        read_lock(tmp_path / "dflash.lock")


@given(st.text(st.sampled_from('{}[]":,\\0123456789schemaodltrgf -.'), max_size=60) | st.binary(max_size=60))
def test_any_text_is_a_lock_or_invalid(content: bytes | str) -> None:
    with contextlib.suppress(Invalid):
        assert isinstance(parse_lock(content), Lock)


RECORD: dict[str, object] = {"size": 100, "identity": "a" * 64, "etag": "e"}


@pytest.mark.parametrize(
    "content",
    [
        *JSON_DAMAGE.values(),
        json.dumps(RECORD | {"etag": None}).encode(),
        json.dumps(RECORD | {"size": "100"}).encode(),
    ],
)
def test_a_damaged_record_of_a_download_begins_again(tmp_path: Path, content: bytes) -> None:
    record, part = tmp_path / "x.json", tmp_path / "x.part"
    part.write_bytes(b"x" * 60)
    file = LockedFile("x", 100, "a" * 64)
    record.write_text(json.dumps(RECORD))
    assert resumed(tmp_path, file) == (60, "e")
    record.write_bytes(content)
    assert resumed(tmp_path, file) == (0, "")


@pytest.mark.parametrize(
    "content", [*JSON_DAMAGE.values(), b'{"x": null}', b'{"x": [1, 2]}', b'{"x": [1, 2, 3]}', b'{"x": {}}']
)
def test_damaged_stamps_of_verified_files_are_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(b"y")
    (tmp_path / ".dflash-verified.json").write_bytes(content)
    file = LockedFile("x", 1, "a" * 64)
    assert missing_files(tmp_path, LockedModel("o/n", "c" * 40, (file,))) == (file,)


@pytest.mark.parametrize("content", JSON_DAMAGE.values(), ids=JSON_DAMAGE.keys())
def test_a_damaged_config_says_nothing_and_is_named_by_the_check(tmp_path: Path, content: bytes) -> None:
    for name in ("config.json", "hf_quant_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes(content)
    found = read_checkpoints(settings(tmp_path), Path)
    assert (found.target, found.drafter) == (None, None)
    with pytest.raises(WeightsMissing, match=r"config\.json is damaged"):
        check_weights(tmp_path, role="target", remedy="pull")


def test_a_fifo_and_a_device_as_config_are_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert read_checkpoints(settings(tmp_path), Path).target is None
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("/dev/zero")
    assert read_checkpoints(settings(tmp_path), Path).target is None


@pytest.mark.parametrize(
    "index",
    [
        *JSON_DAMAGE.values(),
        b'{"weight_map": null}',
        b'{"weight_map": {"a": {}}}',
        b'{"weight_map": {"a": 7}}',
        b'{"weight_map": {"a": "../../etc/passwd"}}',
        b'{"weight_map": {"a": "/dev/zero"}}',
        b'{"weight_map": {"a": "x\\u0000y"}}',
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(WeightsMissing, match=r"index\.json is damaged"):
        check_weights(tmp_path, role="target", remedy="pull")


@pytest.mark.parametrize(
    "content",
    [DEEP, b'{"a": ' + GIANT + b"}", b'{"a": {"data_offsets": [0, 1e400]}}', b"[]", b"null", b'{"a": null}', b"\xff"],
)
def test_a_safetensors_header_that_means_nothing_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
    with pytest.raises(WeightsMissing, match="has a damaged header"):
        check_weights(tmp_path, role="target", remedy="pull")
    found = read_checkpoints(settings(tmp_path), Path)
    assert found == Checkpoints({}, {}, False, False, processor=False, target_bytes=8 + len(content))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_weights_that_are_no_files_are_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "config.json").write_text("{}")
    make(tmp_path / "model.safetensors")
    with pytest.raises(WeightsMissing):
        check_weights(tmp_path, role="target", remedy="pull")


def array(name: str, item: int, length: int) -> bytes:
    return text(name) + struct.pack("<IIQ", 9, item, length)


@pytest.mark.parametrize(
    "content",
    [
        header(array("tokenizer.ggml.tokens", 8, 2**63)),
        header(array("tokenizer.ggml.merges", 8, 2**63)),
        header(array("x", 4, 2**63)),
        header(array("x", 12, 2**64 - 1)),
        header(array("x", 9, 1)),
        header(text("x") + struct.pack("<IQ", 8, 2**64 - 1)),
    ],
)
def test_a_list_longer_than_any_real_one_is_no_header(content: bytes) -> None:
    with pytest.raises(NotGguf) as refusal:
        parse_header(BytesIO(content), "x.gguf")
    assert not isinstance(refusal.value, HeaderEnds)


def test_a_sparse_gguf_ends(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    with file.open("wb") as content:
        content.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 4096) + array("x", 8, 2**21))
        content.truncate(2**42)
    assert read_header(file) == {"": 0}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(
            header(array("x", 8, 2**21 + 1) + bytes(8 * (2**21 + 1)), array("y", 8, 2**21)),
            "lists have more than",
            id="lists of texts",
        ),
        pytest.param(
            header(array("x", 4, 2**22) + bytes(4 * 2**22), array("y", 4, 1)), "lists have more than", id="numbers"
        ),
        pytest.param(
            header(*(text(f"x{number}") + struct.pack("<I", 8) + text("x" * 2**19) for number in range(40))),
            "texts have more than",
            id="long texts",
        ),
    ],
)
def test_the_work_for_a_whole_header_is_bounded(content: bytes, problem: str) -> None:
    with pytest.raises(NotGguf, match=problem):
        parse_header(BytesIO(content), "x.gguf")


def test_texts_of_a_list_are_no_longer_than_a_header(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    with file.open("wb") as content:
        content.write(header(array("tokenizer.ggml.tokens", 8, 2**21)))
        for number in range(300):
            content.seek(file_place(number))
            content.write(struct.pack("<Q", 2**20))
        content.truncate(2**42)
    with pytest.raises(NotGguf, match="longer than"):
        read_header(file)


def file_place(number: int) -> int:
    """Where the text of that number begins, if each has a mebibyte."""
    return len(header(array("tokenizer.ggml.tokens", 8, 2**21))) + number * (2**20 + 8)


def test_a_fifo_is_no_gguf(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(FileInvalid):
        read_header(tmp_path / "x.gguf")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_none(content: bytes) -> None:
    with contextlib.suppress(NotGguf):
        parse_header(BytesIO(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + content), "x.gguf")


KEYS = st.sampled_from(
    [
        *("architectures", "hidden_size", "target_hidden_size", "num_hidden_layers", "vocab_size", "text_config"),
        *("max_position_embeddings", "dflash_config", "target_layer_ids", "block_size", "rope_parameters"),
        *("rope_scaling", "rope_type", "type", "rope_theta", "mtp_num_hidden_layers", "general.architecture"),
        *("qwen.block_count", "qwen.target_layers", "qwen.rope.scaling.type", "qwen.rope.freq_base"),
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**400, 10**401) | st.floats() | st.just("qwen"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
)


@given(st.dictionaries(KEYS, ANYTHING, max_size=10))
def test_whatever_a_config_says_its_metadata_has_the_right_types(config: dict[str, object]) -> None:
    metadata = metadata_of(config)
    for number in (metadata.hidden_size, metadata.layers, metadata.vocabulary, metadata.deepest_layer):
        assert number is None or -1 <= number < 2**63
    assert metadata.rope_theta is None or abs(metadata.rope_theta) < float("inf")
    assert metadata.architecture is None or isinstance(metadata.architecture, str)
