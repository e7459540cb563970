"""What `init`, `doctor` and `up` say if a GPU is lost, or if there are fewer than the plan needs."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.recorded import reports

LOST = "Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost"


def with_gpus(place: Path, count: int, *, tail: str = "", **cells: str) -> Mapping[str, str]:
    """An environment with RTX 3090 cards; `tail` is what nvidia-smi prints after their rows before it fails."""
    gpus = [{name.replace("_", "."): cell for name, cell in cells.items()}] * count
    reports(place, *gpus, tail=tail, code=15 if tail else 0)
    return {**os.environ, "PATH": f"{place}:/usr/bin:/bin", "DOCKER_HOST": f"unix://{place}/none.sock"}


@pytest.mark.parametrize(("rows", "tail", "said"), [(1, LOST, LOST), (1, "", "GPUs that respond: 1")])
def test_init_doctor_and_up_name_what_is_missing(tmp_path: Path, rows: int, tail: str, said: str) -> None:
    here = with_gpus(tmp_path / "bin", rows, tail=tail)
    made = dflash("init", "--profile", "rtx-3090-x2", "--dir", "box", at=tmp_path, environment=here).succeeded()
    assert "GPUs that the plan needs: 2" in made.out + made.err
    ran = dflash("doctor", "--json", "--dir", "box", at=tmp_path, environment=here)
    checks = {check["name"]: check for check in ran.document["data"]["checks"]}
    assert (ran.code, checks["plan: gpu-missing"]["status"]) == (ExitCode.PREFLIGHT, "no")
    assert said in checks["plan: gpu-missing"]["saw"]
    assert checks["gpu"]["status"] == ("no" if tail else "ok")
    refused = dflash("up", "--dir", "box", at=tmp_path, environment=here)
    assert refused.code is ExitCode.PREFLIGHT
    assert said in refused.err


def test_a_slow_card_is_a_warning_of_doctor(tmp_path: Path) -> None:
    here = with_gpus(tmp_path / "bin", 2, pcie_link_width_current="1", power_limit="100.00", temperature_gpu="93")
    dflash("init", "--dir", "box", at=tmp_path, environment=here).succeeded()
    ran = dflash("doctor", "--json", "--dir", "box", at=tmp_path, environment=here)
    found = [check for check in ran.document["data"]["checks"] if check["name"] == "condition of GPU 1"]
    assert [check["status"] for check in found] == ["warning"] * 3
    assert "x1 of x16" in found[0]["saw"]
