"""`models list` in 80 columns and for a card that is not here; `models rm` and `models prune`."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash


@pytest.mark.parametrize("options", [("--profile", "dgx-spark"), ("--memory", "24G"), ("--profile", "cpu")])
def test_each_model_has_one_line_of_80_columns_and_the_best_is_first(options: tuple[str, str], tmp_path: Path) -> None:
    lines = dflash("models", "list", *options, at=tmp_path).succeeded().out.splitlines()
    assert max(map(len, lines)) <= 80
    first = {"dgx-spark": "qwen3.8-27b-nvfp4-nvidia", "24G": "qwen3.8-27b-gguf", "cpu": "tiny"}[options[1]]
    assert lines[2].split()[0] == first
    assert any(line.startswith("tiny") for line in lines) is (options[1] == "cpu")
    document = dflash("models", "list", *options, "--json", at=tmp_path).succeeded().document["data"]
    shown = [line.split()[0] for line in lines[2 : lines.index("")]]
    assert [row["name"] for row in document["models"] if row["compatible"]] == shown


@pytest.mark.parametrize("size", ["", "x", "0G", "24T", "-1"])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    ran = dflash("models", "list", f"--memory={size or 'none'}", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "is not a memory size" in ran.err


def test_two_machines_are_not_one(tmp_path: Path) -> None:
    assert dflash("models", "list", "--memory", "24G", "--profile", "h100", at=tmp_path).code is ExitCode.USAGE


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A deployment of one model, with the weights of two."""
    weights = tmp_path / "models"
    for name in ("Qwen3.5-27B-FP8", "Qwen3.8-27B-FP8", "Qwen3.8-27B-DFlash2", "mine"):
        (weights / name).mkdir(parents=True)
        (weights / name / "model.safetensors").write_bytes(b"x" * 1000)
    chosen = ("--profile", "h100", "--model", "qwen3.8-27b-fp8", "--models-dir", str(weights))
    (tmp_path / "box").mkdir()
    dflash("init", *chosen, at=tmp_path / "box").succeeded()
    return tmp_path / "box"


def test_weights_that_no_deployment_names_go_after_they_were_shown(box: Path) -> None:
    weights = box.parent / "models"
    prune = ("models", "prune", "--models-dir", str(weights))
    shown = dflash(*prune, at=box).succeeded()
    assert f"unused   {weights}/Qwen3.5-27B-FP8" in shown.out
    assert "dflash-deploy models prune --yes" in shown.out
    assert len(list(weights.iterdir())) == 4
    document = dflash(*prune, "--yes", "--json", at=box).succeeded().document["data"]
    assert document["removed"] is True
    # what is served stays, and so does what is not the catalog's
    assert {one.name for one in weights.iterdir()} == {"Qwen3.8-27B-FP8", "Qwen3.8-27B-DFlash2", "mine"}
    assert "a deployment names every directory" in dflash(*prune, "--yes", at=box).succeeded().out


def test_one_model_goes_unless_a_deployment_names_it(box: Path) -> None:
    weights = box.parent / "models"
    remove = ("models", "rm", "--models-dir", str(weights), "--yes")
    assert "kept " in dflash(*remove, "qwen3.8-27b-fp8", at=box).succeeded().out
    assert (weights / "Qwen3.8-27B-FP8").is_dir()
    dflash(*remove, "qwen3.5-27b-fp8", at=box).succeeded()
    assert not (weights / "Qwen3.5-27B-FP8").exists()
    again = dflash(*remove, "qwen3.5-27b-fp8", at=box)
    assert again.code is ExitCode.USAGE
    assert "has no weights of qwen3.5-27b-fp8" in again.err
    assert dflash(*remove, "qwen9", at=box).code is ExitCode.USAGE


def test_a_link_is_not_followed(box: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (box.parent / "models" / "Qwen3.6-27B-FP8").symlink_to(elsewhere)
    dflash("models", "prune", "--models-dir", str(box.parent / "models"), "--yes", at=box).succeeded()
    assert elsewhere.is_dir()
