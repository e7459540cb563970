"""Directories as interrupted downloads leave them."""

import errno
import json
import os
from pathlib import Path

import pytest

from dflash_deploy.errors import WeightsMissing
from dflash_deploy.weights import check_weights


def look(directory: Path) -> None:
    check_weights(directory, role="target", remedy="pull")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for shard in shards.values():
        (tmp_path / shard).write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    return tmp_path


def test_a_whole_model_passes(model: Path) -> None:
    look(model)


def test_a_missing_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="absent") as refusal:
        check_weights(tmp_path / "absent", role="target", remedy="set MODEL_HOST_PATH")
    assert refusal.value.hint == "set MODEL_HOST_PATH"


def test_a_missing_shard(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    with pytest.raises(WeightsMissing, match=r"model-2\.safetensors is missing"):
        look(model)


def test_a_link_into_a_cache_that_is_not_there(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    (model / "model-2.safetensors").symlink_to("../../blobs/abc")
    with pytest.raises(WeightsMissing, match="a broken symlink"):
        look(model)


def test_a_link_into_a_cache_leads_nowhere_in_a_container(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    blob = tmp_path_factory.mktemp("blobs") / "abc"
    (model / "model-2.safetensors").rename(blob)
    (model / "model-2.safetensors").symlink_to(blob)
    look(model)
    with pytest.raises(WeightsMissing, match="which a container does not see"):
        check_weights(model, role="target", remedy="pull", mounted=True)


def test_an_index_cut_short(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "mod')
    with pytest.raises(WeightsMissing, match="is damaged"):
        look(model)


def test_an_empty_shard(model: Path) -> None:
    (model / "model-1.safetensors").write_bytes(b"")
    with pytest.raises(WeightsMissing, match="is empty"):
        look(model)


def test_a_clone_without_git_lfs(model: Path) -> None:
    (model / "model-1.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(WeightsMissing, match="Git LFS pointer"):
        look(model)


def test_a_shard_that_is_cut_off(model: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [50], "data_offsets": [0, 100]}}).encode()
    (model / "model-1.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x" * 99)
    with pytest.raises(WeightsMissing, match=r"is truncated: \d+ of \d+ bytes"):
        look(model)


@pytest.mark.parametrize("offsets", ['["a", "b"]', "[0]", "[0, Infinity]", "[0, [1]]", "7", "null"])
def test_a_shard_whose_header_means_nothing(model: Path, offsets: str) -> None:
    header = f'{{"a": {{"dtype": "BF16", "shape": [50], "data_offsets": {offsets}}}}}'.encode()
    (model / "model-1.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x" * 99)
    with pytest.raises(WeightsMissing, match="has a damaged header"):
        look(model)


def test_weights_on_a_share_that_went_away(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "is_dir", stale)
    with pytest.raises(WeightsMissing, match=r"cannot be read: .*Stale file handle"):
        look(model)


def test_a_config_cut_short(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": [')
    with pytest.raises(WeightsMissing, match=r"config\.json is damaged"):
        look(model)


def test_no_weights_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match=r"config\.json is missing"):
        look(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsMissing, match=r"no \*\.safetensors"):
        look(tmp_path)
