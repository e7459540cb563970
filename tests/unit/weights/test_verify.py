"""What is wrong with a weight file, said by name."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.errors import LockRefused
from dflash_deploy.weights.check import problem_of
from dflash_deploy.weights.download import part_files, resumed
from dflash_deploy.weights.lock import (
    Lock,
    LockedFile,
    LockedModel,
    is_within,
    needed,
    parse_lock,
    read_lock,
    write_lock,
)

HEADER = json.dumps({"a": {"dtype": "BF16", "shape": [50], "data_offsets": [0, 100]}}).encode()
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + b"x" * 100


def locked(content: bytes, name: str = "model.safetensors") -> LockedFile:
    return LockedFile(name, len(content), hashlib.sha256(content).hexdigest())


def write(directory: Path, content: bytes, name: str = "model.safetensors") -> Path:
    (directory / name).write_bytes(content)
    return directory / name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>sign in</html>", "is an HTML page"),
        (WHOLE[:-10], "is truncated"),
        (WHOLE[:5], "is truncated in its header"),
        (b"\xff" * 200, "not a safetensors file"),
        ((20).to_bytes(8, "little") + b"not json at all, no " + b"x" * 200, "damaged header"),
        (WHOLE + b"more", "instead of"),
        (WHOLE[:-1] + b"y", "another checksum"),
    ],
)
def test_a_wrong_file_is_called_what_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in problem_of(write(tmp_path, content), locked(WHOLE))


def test_a_right_file_is_right_by_sha256_or_by_gits_own_id(tmp_path: Path) -> None:
    assert problem_of(write(tmp_path, WHOLE), locked(WHOLE)) == ""
    # `printf hello | git hash-object --stdin`
    blob = LockedFile("config.json", 5, None, "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0")
    assert problem_of(write(tmp_path, b"hello", "config.json"), blob) == ""
    assert "missing" in problem_of(tmp_path / "absent.json", blob)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)
FILES = st.builds(
    LockedFile, NAMES, st.integers(0, 2**45), st.none() | st.just("a" * 64), st.none() | st.just("b" * 40)
)
MODELS = st.builds(LockedModel, st.just("o/n"), st.just("c" * 40), st.lists(FILES, max_size=4).map(tuple))


@given(st.dictionaries(st.sampled_from(["target", "drafter"]), MODELS))
def test_a_lock_is_read_as_it_was_written(models: dict[str, LockedModel]) -> None:
    lock = Lock(models)  # type: ignore[arg-type]
    assert parse_lock(lock.text()) == lock


def test_a_lock_keeps_the_one_before(tmp_path: Path) -> None:
    first, second = (Lock({"target": LockedModel("o/n", commit * 40, ())}) for commit in "ab")
    assert write_lock(tmp_path / "dflash.lock", first)
    assert not write_lock(tmp_path / "dflash.lock", first)
    assert write_lock(tmp_path / "dflash.lock", second)
    assert read_lock(tmp_path / "dflash.lock") == second
    assert read_lock(tmp_path / "dflash.lock.last") == first


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "a//b"])
def test_a_lock_that_leads_out_of_its_directory_is_refused(tmp_path: Path, path: str) -> None:
    assert not is_within(path)
    file = tmp_path / "dflash.lock"
    file.write_text(Lock({"target": LockedModel("o/n", "c" * 40, (LockedFile(path, 1),))}).text())
    with pytest.raises(LockRefused):
        read_lock(file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_a_damaged_lock_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dflash.lock").write_text(text)
    with pytest.raises(LockRefused, match="damaged"):
        read_lock(tmp_path / "dflash.lock")


def test_what_an_engine_needs_of_a_repository() -> None:
    names = [
        *("config.json", "tokenizer.json", "chat_template.jinja", "merges.txt", "model-00001-of-00002.safetensors"),
        *("README.md", ".gitattributes", "pytorch_model.bin", "dflash.py", "mask_embedding.pt", "figures/a.png"),
        *("original/params.json", "x.gguf", ".dflash-verified.json"),
    ]
    files = [LockedFile(name, 1) for name in names]
    assert {file.path for file in needed(files, "target")} == set(names[:5])
    assert {file.path for file in needed(files, "drafter")} == {*names[:5], "mask_embedding.pt"}
    assert {file.path for file in needed(files, "target", ("x.gguf", ""))} == {"x.gguf"}


def test_bytes_of_another_file_do_not_count(tmp_path: Path) -> None:
    file = locked(WHOLE)
    state, part = part_files(tmp_path, file)
    part.write_bytes(b"x" * 60)
    state.write_text(json.dumps({"size": file.size, "identity": file.sha256, "etag": "e"}))
    assert resumed(tmp_path, file) == (60, "e")
    assert resumed(tmp_path, replace(file, size=file.size + 1)) == (0, "")
    assert resumed(tmp_path, replace(file, sha256="b" * 64)) == (0, "")
    part.write_bytes(b"x" * (file.size + 1))
    assert resumed(tmp_path, file) == (0, "")
    part.unlink()
    assert resumed(tmp_path, file) == (0, "")
