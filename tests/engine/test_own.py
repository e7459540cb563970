"""A target and a draft model that the catalog has never heard of, served by the real vLLM."""

import json
import shutil
from pathlib import Path

from dflash_deploy.assets import asset
from tests.support.cli import dflash
from tests.support.mtp_target import Tensor, read_tensors, write_tensors
from tests.support.ports import free_port

WIDTH, WIDER = 384, 448
BYTES = 2


def widened(target: Path) -> Path:
    """The tiny target with wider layers: what is added is zero, so it computes the same."""
    shutil.copytree(asset("models/tiny/target"), target)
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["intermediate_size"] = WIDER
    (target / "config.json").write_text(json.dumps(config))
    tensors = read_tensors(target / "model.safetensors")
    for name, (shape, data) in {name: (one.shape, one.data) for name, one in tensors.items()}.items():
        rows, *others = shape
        if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
            tensors[name] = Tensor((WIDER, *others), data + bytes((WIDER - WIDTH) * others[0] * BYTES))
        elif name.endswith("mlp.down_proj.weight"):
            row = WIDTH * BYTES
            wide = (data[at : at + row] + bytes((WIDER - WIDTH) * BYTES) for at in range(0, len(data), row))
            tensors[name] = Tensor((rows, WIDER), b"".join(wide))
    write_tensors(target / "model.safetensors", tensors)
    return target


def test_an_unknown_pair_with_a_shape_of_its_own_is_served_with_drafts(tmp_path: Path) -> None:
    target, drafter = widened(tmp_path / "acorn"), tmp_path / "oak"
    shutil.copytree(asset("models/tiny/drafter"), drafter)
    place = tmp_path / "there"
    place.mkdir()
    asked = ("--profile", "cpu", "--engine", "vllm", "--runtime", "native", "--port", str(free_port()))
    dflash("init", *asked, "--model", str(target), "--drafter", str(drafter), at=place).succeeded()
    assert "DFLASH_PAIR=acorn" in (place / ".env").read_text()
    dflash("up", at=place).succeeded()
    try:
        checks = dflash("test", "--only", "name,drafts", "--json", at=place).succeeded().document["data"]["checks"]
        assert [check["status"] for check in checks] == ["passed", "passed"], checks
    finally:
        dflash("down", at=place).succeeded()
