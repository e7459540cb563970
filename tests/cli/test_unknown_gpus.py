"""What `init`, `plan` and `profiles` say on machines whose GPUs have no profile: a stub prints what nvidia-smi does."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash

EXAMPLE = Path(__file__).parents[2] / "docs" / "reference" / "catalog" / "gpus.yaml"


def with_gpus(place: Path, *gpus: str) -> Mapping[str, str]:
    """An environment whose nvidia-smi lists these GPUs."""
    rows = [f"{index}, {gpu}, 24000, 580.95.05, [N/A]" for index, gpu in enumerate(gpus)]
    script = place / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(rows) + "\nEND\n", encoding="utf-8")
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{script.parent}:/usr/bin:/bin"}


def test_a_gpu_without_a_profile_is_planned_and_marked_as_computed(tmp_path: Path) -> None:
    here = with_gpus(tmp_path, "NVIDIA L4, 8.9, 23034")
    made = dflash("init", "--dir", "box", at=tmp_path, environment=here).succeeded()
    assert "profile  l4: one NVIDIA L4 (24 GB) (computed)" in made.out
    assert "no profile describes one NVIDIA L4 (24 GB): settings of profile rtx-4090" in made.out + made.err
    shown = dflash("plan", "--json", "--dir", "box", at=tmp_path, environment=here).succeeded().document["data"]
    assert shown["profile"] == "l4"
    # 300 GB/s: 58 tokens/s were promised, those of an RTX 4090
    assert shown["speed"]["expected"][0]["plain_tokens_per_s"][1] < 25
    assert shown["speed"]["published"] == []
    listed = dflash("profiles", "list", "--json", at=tmp_path, environment=here).succeeded().document["data"]
    assert [one["name"] for one in listed["profiles"] if one["fits"]] == ["l4"]
    text = dflash("plan", "--dir", "box", at=tmp_path, environment=here).succeeded().out
    assert "computed: settings of profile rtx-4090" in text


def test_unequal_gpus_are_named_one_by_one(tmp_path: Path) -> None:
    here = with_gpus(tmp_path, "NVIDIA GeForce RTX 3090, 8.6, 24576", "NVIDIA GeForce RTX 4090, 8.9, 24564")
    made = dflash("init", "--dir", "box", at=tmp_path, environment=here).succeeded()
    assert "NVIDIA GeForce RTX 4090 (1), not NVIDIA GeForce RTX 3090 (0)" in made.out + made.err
    shown = dflash("plan", "--dir", "box", at=tmp_path, environment=here).succeeded().out
    assert "CUDA_VISIBLE_DEVICES" in shown
    assert "of this machine's 2 GPUs, all" not in shown


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("Tesla V100-SXM2-32GB, 7.0, 32768", "which are BF16, from compute capability 8.0 on"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU, 12.0, 24463", "the catalog has no bandwidth of it"),
    ],
)
def test_a_gpu_that_cannot_be_planned_is_refused_in_one_line(tmp_path: Path, gpu: str, says: str) -> None:
    ran = dflash("init", at=tmp_path, environment=with_gpus(tmp_path, gpu))
    assert ran.code is not ExitCode.DONE
    first, second = ran.err.strip().splitlines()
    assert says in first
    assert second.strip().startswith("hint: ")
    assert "(nearest: rtx-" in second


def test_a_gpu_without_a_source_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "gpus.yaml").write_text(EXAMPLE.read_text().replace("    source:", "    # source:"))
    ran = dflash("profiles", "list", at=tmp_path, environment={**os.environ, "DFLASH_CATALOG": str(tmp_path / "own")})
    assert ran.code is ExitCode.USAGE
    first, second = ran.err.strip().splitlines()
    assert first.endswith("gpus.yaml: gpus.0.source: Field required")
    assert second.strip().startswith("hint: ")
