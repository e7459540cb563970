"""Directories as interrupted downloads leave them."""

import errno
import json
import os
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import WeightsMissing
from dflash_deploy.weights.check import check_weights
from tests.support.gguf import header, key, tensor


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


@pytest.mark.parametrize(("there", "absent"), [("1-of-00002", "2-of-00002"), ("2-of-00003", "1-of-00003")])
def test_a_part_is_missed_without_an_index(model: Path, there: str, absent: str) -> None:
    (model / "model.safetensors.index.json").unlink()
    (model / "model-1.safetensors").rename(model / f"model-0000{there}.safetensors")
    with pytest.raises(WeightsMissing, match=rf"model-0000{absent}\.safetensors is missing"):
        look(model)


def test_all_parts_without_an_index(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    for number in (1, 2):
        (model / f"model-{number}.safetensors").rename(model / f"model-{number:05}-of-00002.safetensors")
    look(model)


@pytest.mark.parametrize("name", ["model-2.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_link_into_a_cache_that_is_not_there(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to("../../blobs/abc")
    with pytest.raises(WeightsMissing, match=rf"incomplete: {name} is a broken symlink to \.\./\.\./blobs/abc"):
        look(model)


def test_a_link_to_nowhere_that_no_engine_reads(model: Path) -> None:
    (model / "README.md").symlink_to("../../blobs/abc")
    (model / "onnx").symlink_to("../../blobs/abc")
    look(model)


def test_a_directory_and_a_gguf_that_are_links_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to("/mnt/unplugged")
    (tmp_path / "target.gguf").symlink_to("/mnt/unplugged/target.gguf")
    with pytest.raises(WeightsMissing, match=r"target is a broken symlink to /mnt/unplugged"):
        look(tmp_path / "target")
    with pytest.raises(WeightsMissing, match=r"target\.gguf is a broken symlink to /mnt/unplugged/target\.gguf"):
        check_weights(tmp_path, role="target", remedy="pull", file="target.gguf")


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


def split(directory: Path, *parts: str, count: int = 3) -> Path:
    """A GGUF in parts, written as llama-gguf-split writes it: the numbers in the headers count from 0."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(parts):
        numbers = key("split.no", number), key("split.count", count)
        (directory / name).write_bytes(header(*numbers, tensors=1) + tensor("a", 0, 0, 8) + bytes(64))
    return directory


PARTS = tuple(f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3))


def look_at_parts(directory: Path, file: str = PARTS[0]) -> None:
    check_weights(directory, role="target", remedy="pull", file=file)


def test_a_gguf_in_parts_passes_in_a_directory_below_too(tmp_path: Path) -> None:
    look_at_parts(split(tmp_path, *PARTS))
    split(tmp_path / "Q4", *PARTS)
    look_at_parts(tmp_path, f"Q4/{PARTS[0]}")


def test_a_missing_part_of_a_gguf(tmp_path: Path) -> None:
    split(tmp_path, *PARTS)
    (tmp_path / PARTS[2]).unlink()
    with pytest.raises(WeightsMissing, match=f"{PARTS[2]} is missing"):
        look_at_parts(tmp_path)
    (tmp_path / PARTS[2]).symlink_to("/mnt/unplugged/part")
    with pytest.raises(WeightsMissing, match=f"{PARTS[2]} is a broken symlink to /mnt/unplugged/part"):
        look_at_parts(tmp_path)


@pytest.mark.parametrize(("left", "problem"), [(0, "is empty"), (40, "in its header"), (-40, r"truncated: \d+ of")])
def test_a_damaged_part_of_a_gguf(tmp_path: Path, left: int, problem: str) -> None:
    second = split(tmp_path, *PARTS) / PARTS[1]
    second.write_bytes(second.read_bytes()[:left])
    with pytest.raises(WeightsMissing, match=rf"{PARTS[1]} .*{problem}"):
        look_at_parts(tmp_path)


def test_parts_of_a_gguf_in_another_order_or_under_other_names(tmp_path: Path) -> None:
    split(tmp_path / "a", *PARTS)
    with pytest.raises(WeightsMissing, match=f"{PARTS[1]} is part 2 of 3, in place of part 1"):
        look_at_parts(tmp_path / "a", PARTS[1])
    split(tmp_path / "b", PARTS[0], PARTS[2], PARTS[1])
    with pytest.raises(WeightsMissing, match=f"{PARTS[1]} is part 3 of 3, in place of part 2"):
        look_at_parts(tmp_path / "b")
    split(tmp_path / "c", "one.gguf", "two.gguf", "three.gguf")
    with pytest.raises(WeightsMissing, match=r"one\.gguf is one of 3 parts, which must be named \*-00001-of-00003"):
        look_at_parts(tmp_path / "c", "one.gguf")


@pytest.mark.parametrize(("rows", "sound"), [(2, False), (3, True), (64, True)])
def test_a_vocabulary_larger_than_the_embedding_of_a_gguf(tmp_path: Path, rows: int, sound: bool) -> None:
    words = key("tokenizer.ggml.tokens", ["a", "b", "c"])
    embedding = tensor("token_embd.weight", 0, 0, 8, rows)
    (tmp_path / "x.gguf").write_bytes(header(words, tensors=1) + embedding + bytes(32 * rows + 32))
    if sound:
        look_at_parts(tmp_path, "x.gguf")
        return
    with pytest.raises(WeightsMissing, match=r"x\.gguf has 3 tokens, but its embedding has 2 rows"):
        look_at_parts(tmp_path, "x.gguf")


@pytest.mark.parametrize("name", ["target.gguf", "drafter.gguf", "drafter-buun.gguf", "mmproj.gguf"])
def test_the_bundled_ggufs_pass(name: str) -> None:
    look_at_parts(asset("models/tiny/gguf"), name)


def refused(directory: Path, role: str, file: str) -> WeightsMissing:
    with pytest.raises(WeightsMissing) as refusal:
        check_weights(directory, role=role, file=file, remedy="fetch it")
    return refusal.value


@pytest.mark.parametrize(
    ("there", "role", "file", "setting"),
    [
        ("UD-Q4_K_XL/target.gguf", "target", "target.gguf", "MODEL_FILE"),
        ("gguf/q8/drafter.gguf", "drafter", "drafter.gguf", "DRAFTER_FILE"),
        ("vision/mmproj-F16.gguf", "vision projector", "mmproj.gguf", "MMPROJ_FILE"),
        # of another name in the directory itself
        ("Qwen3.6-27B-Q4_K_M.gguf", "target", "target.gguf", "MODEL_FILE"),
    ],
)
def test_a_gguf_that_is_elsewhere_in_the_directory_is_named(
    tmp_path: Path, there: str, role: str, file: str, setting: str
) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_bytes(b"GGUF")
    problem = refused(tmp_path, role, file)
    assert problem.message.endswith(f"{file} is missing; the directory has {there}")
    assert problem.hint == f"`dflash-deploy set {setting}={there}`, or fetch it"


def test_of_several_ggufs_the_one_of_the_same_name_is_first_and_only_targets_are_targets(tmp_path: Path) -> None:
    for name in (
        "A/other.gguf",
        "B/target.gguf",
        "C/another.gguf",
        "D/fourth.gguf",
        "A/mmproj-F16.gguf",
        "a-DFlash.gguf",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    assert (
        "the directory has B/target.gguf, A/other.gguf, C/another.gguf"
        in refused(tmp_path, "target", "target.gguf").message
    )
    assert refused(tmp_path, "vision projector", "mmproj.gguf").message.endswith("has A/mmproj-F16.gguf")
    assert refused(tmp_path, "drafter", "drafter.gguf").message.endswith("has a-DFlash.gguf")


def test_a_directory_without_a_gguf_names_none(tmp_path: Path) -> None:
    assert refused(tmp_path, "target", "target.gguf").hint == "fetch it"
