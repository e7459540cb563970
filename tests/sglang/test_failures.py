"""States that end the real SGLang at its start, or that preflight sees: the cause is named, and nothing runs after."""

import shutil
import socket
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env

ARGUMENTS = "--device cpu --disable-overlap-schedule"


def test_a_port_in_use_is_refused_before_the_start(deployment: Path) -> None:
    port = Deployment(deployment).values["DFLASH_PORT"]
    with socket.create_server(("127.0.0.1", int(port))):
        ran = dflash("up", at=deployment)
    assert ran.code is ExitCode.PREFLIGHT
    assert f"{port} on 127.0.0.1 is already in use" in ran.err


def test_a_context_beyond_the_model_is_refused_before_the_start(deployment: Path) -> None:
    edit_env(deployment, MAX_MODEL_LEN="8192")
    ran = dflash("up", at=deployment)
    assert ran.code is ExitCode.PREFLIGHT
    assert "MAX_MODEL_LEN" in ran.err
    assert "4096" in ran.err


def ended(deployment: Path) -> Ran:
    """An `up` whose engine ends at its start."""
    ran = dflash("up", "--json", at=deployment)
    assert ran.code is ExitCode.NOT_READY, ran.err
    assert dflash("status", "--json", at=deployment).document["data"]["state"] == "exited"
    return ran


def test_a_wrong_argument_is_named(deployment: Path) -> None:
    edit_env(deployment, EXTRA_ARGS=f"{ARGUMENTS} --random-seed=none")
    ran = ended(deployment)
    assert "argument --random-seed: invalid int value: 'none'" in ran.err
    assert "ended with code 2" in ran.err


@pytest.mark.parametrize("failure", ["sglang-warmup-refused", "weights-damaged"])
def test_what_ends_it_while_it_loads_is_named(deployment: Path, failure: str) -> None:
    if failure == "weights-damaged":
        target = deployment / "target"
        shutil.copytree(asset("models/tiny/target"), target)
        weights = target / "model.safetensors"
        # one digit of the header: a tensor has another shape than bytes
        weights.write_bytes(weights.read_bytes().replace(b'"shape":[1024,', b'"shape":[1023,', 1))
        edit_env(deployment, MODEL_HOST_PATH=str(target))
    else:
        edit_env(deployment, EXTRA_ARGS=f"{ARGUMENTS} --max-total-tokens 4")
    ran = ended(deployment)
    assert ran.document["data"]["failure"] == failure, ran.err
