"""What weights on disk say of themselves, as rules read it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.plan.result import Checkpoints
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.checkpoints import read_checkpoints
from tests.support.gguf import model
from tests.support.mtp_target import target_without_head


def settings(directory: Path, **others: str) -> Settings:
    places = {"MODEL_HOST_PATH": str(directory / "target"), "DRAFTER_HOST_PATH": str(directory / "drafter")}
    return Settings(places | others)


def test_nothing_there_is_nothing_known(tmp_path: Path) -> None:
    assert read_checkpoints(settings(tmp_path), Path) == Checkpoints()


def test_config_json_of_target_and_drafter(tmp_path: Path) -> None:
    for role in ("target", "drafter"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text(json.dumps({"hidden_size": 5120, "role": role}))
    found = read_checkpoints(settings(tmp_path), Path)
    assert found.target == {"hidden_size": 5120, "role": "target"}
    assert found.drafter == {"hidden_size": 5120, "role": "drafter"}


@pytest.mark.parametrize("indexed", [False, True])
def test_whether_a_target_has_a_head_is_read_where_it_counts(tmp_path: Path, indexed: bool) -> None:
    bare = target_without_head(tmp_path / "bare")
    target = Path(shutil.copytree(asset("models/tiny/target"), tmp_path / "target"))
    asked = settings(tmp_path, DFLASH_DRAFTER="mtp")
    if indexed:
        names = ("model.layers.0.mlp.up_proj.weight", "mtp.fc.weight")
        index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_checkpoints(asked, Path).head is True
    assert read_checkpoints(settings(tmp_path), Path).head is None
    (target / "model.safetensors.index.json").unlink(missing_ok=True)
    shutil.copy(bare / "model.safetensors", target)
    assert read_checkpoints(asked, Path).head is False
    (target / "model.safetensors").write_bytes(b"\xff" * 64)
    assert read_checkpoints(asked, Path).head is None
    # config.json comes before the weights
    (target / "model.safetensors").unlink()
    assert read_checkpoints(asked, Path).head is None


def test_modelopt_writes_its_quantisation_beside_it(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    (tmp_path / "target" / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4_AWQ"}}))
    found = read_checkpoints(settings(tmp_path), Path)
    assert found.target == {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}}


def test_damaged_files_are_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("[1, 2")
    assert read_checkpoints(settings(tmp_path), Path) == Checkpoints()
    (tmp_path / "target" / "model.gguf").write_bytes(b"not one")
    assert read_checkpoints(settings(tmp_path, MODEL_FILE="model.gguf"), Path) == Checkpoints()


@pytest.mark.parametrize("lacking", [("tokenizer.json",), ("preprocessor_config.json",), ("chat_template.jinja",)])
def test_files_beside_the_weights_are_missed_after_a_download_and_not_during_one(
    tmp_path: Path, lacking: tuple[str, ...]
) -> None:
    target = Path(shutil.copytree(asset("models/tiny/target"), tmp_path / "target"))
    names = ("tokenizer", "processor", "template")
    kinds = dict(zip(("tokenizer.json", "preprocessor_config.json", "chat_template.jinja"), names, strict=True))
    for name in lacking:
        (target / name).unlink()

    def found() -> dict[str, bool | None]:
        read = read_checkpoints(settings(tmp_path), Path)
        return {kind: getattr(read, kind) for kind in names}

    assert found() == dict.fromkeys(names, True) | {kinds[name]: False for name in lacking}
    (target / ".pull").mkdir()
    (target / ".pull" / f"{lacking[0]}.part").touch()
    assert found() == dict.fromkeys(names)
    shutil.rmtree(target / ".pull")
    (target / "model.safetensors").unlink()
    assert found() == dict.fromkeys(names)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_either_file_is_a_processor(tmp_path: Path, name: str) -> None:
    target = Path(shutil.copytree(asset("models/tiny/target"), tmp_path / "target"))
    (target / "preprocessor_config.json").rename(target / name)
    assert read_checkpoints(settings(tmp_path), Path).processor is True


@pytest.mark.parametrize(
    ("text", "largest"),
    [
        (json.dumps({"added_tokens": [{"id": 7, "content": "<a>"}, {"id": 1024, "content": "<b>"}]}), 1024),
        (json.dumps({"added_tokens": [{"id": 31999, "content": '"id": 9'}]}, indent=2), 31999),
        (json.dumps({"added_tokens": [{"id":3}], "model": {"vocab": {"id": 50256}}}, separators=(",", ":")), 50256),
        ('{"added_tokens": [{"id": ' + "9" * 40 + "}]}", None),
        ('{"added_tokens": []}', None),
        ("{", None),
    ],
)  # fmt: skip
def test_the_largest_token_that_was_added(tmp_path: Path, text: str, largest: int | None) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    assert read_checkpoints(settings(tmp_path), Path).largest_token is None
    (tmp_path / "target" / "tokenizer.json").write_text(text)
    assert read_checkpoints(settings(tmp_path), Path).largest_token == largest


@pytest.mark.parametrize("kind", ["clip", "qwen35", "dflash"])
def test_what_is_named_as_projector(tmp_path: Path, kind: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a.gguf").write_bytes(model("qwen35", ["a"]))
    named = settings(tmp_path, MODEL_FILE="a.gguf", MMPROJ_FILE="b.gguf")
    assert read_checkpoints(named, Path).projector is None
    (tmp_path / "target" / "b.gguf").write_bytes(model(kind, ["a"]))
    assert read_checkpoints(named, Path).projector == kind


@pytest.mark.parametrize(
    ("role", "setting"),
    [("target", "MODEL_HOST_PATH"), ("drafter", "DRAFTER_HOST_PATH"), ("drafter", "DFLASH_DRAFTER")],
)
@pytest.mark.parametrize("below", ["", "snapshots"])
def test_a_folder_of_the_hub_s_cache_has_its_model_in_a_snapshot(
    tmp_path: Path, role: str, setting: str, below: str
) -> None:
    folder = tmp_path / f"models--ada--{role}"
    for number, commit in enumerate(("newer", "older")):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}")
        os.utime(folder / "snapshots" / commit, (2000 - number, 2000 - number))
    (folder / "blobs").mkdir()
    snapshot = folder / "snapshots" / "newer"
    places = {"MODEL_HOST_PATH": str(tmp_path)}
    given = Settings(places | {setting: str(folder / below)})
    assert read_checkpoints(given, Path).snapshots == {setting: str(snapshot)}
    assert read_checkpoints(Settings(places | {setting: str(snapshot)}), Path).snapshots == {}
    shutil.rmtree(folder / "snapshots")
    assert read_checkpoints(given, Path).snapshots == {}


def test_the_bundled_target_has_all_that_is_looked_for() -> None:
    found = read_checkpoints(Settings({"MODEL_HOST_PATH": str(asset("models/tiny/target"))}), Path)
    assert (found.tokenizer, found.template, found.processor) == (True, True, True)
    assert found.largest_token is not None
    assert found.largest_token < 1024
