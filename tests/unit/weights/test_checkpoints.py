"""What weights on disk say of themselves, as rules read it."""

import json
import shutil
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.plan import Checkpoints
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights import read_checkpoints
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
