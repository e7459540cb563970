"""Two commands on one deployment at once: one waits or is refused, and what is left is whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor.deployment import half_written
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise
from tests.support.commands import wait_until
from tests.support.ports import free_port
from tests.support.scripted_vllm import installed_in

pytestmark = pytest.mark.slow

NATIVE = ("--profile", "cpu", "--runtime", "native")
BUSY = "is in use by another command"


def begin(*args: str, at: Path, variables: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_deploy", *args],
        cwd=at,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("one", [("render",), ("keys", "rotate")], ids=" ".join)
def test_each_of_two_succeeds_or_is_refused_in_one_line(one: tuple[str, ...], tmp_path: Path) -> None:
    initialise(*NATIVE, at=tmp_path)
    (tmp_path / "compose.yaml").unlink()
    key = Deployment(tmp_path).key
    commands = [begin(*args, at=tmp_path) for args in (one, ("render",), ("keys", "rotate"))]
    said = [command.communicate(timeout=300)[1] for command in commands]
    codes = [command.returncode for command in commands]
    assert 0 in codes
    for code, text in zip(codes, said, strict=True):
        assert code in {ExitCode.DONE, ExitCode.PREFLIGHT}
        assert [BUSY in line for line in text.splitlines() if line.startswith("error: ")] == [True] * (code != 0)
    deployment = Deployment(tmp_path)
    assert deployment.key_is_sound
    assert (deployment.key != key) == (0 in (codes[2], codes[0] if one[0] == "keys" else None))
    assert not list(half_written(deployment))
    assert (deployment.state / "lock").read_bytes() == b""
    if 0 in (codes[1], codes[0] if one[0] == "render" else None):
        assert "engine" in yaml.safe_load(deployment.compose_file.read_text())["services"]


def test_down_is_refused_while_up_waits_for_its_engine(tmp_path: Path) -> None:
    variables = installed_in(tmp_path / "site")
    box = tmp_path / "box"
    initialise(*NATIVE, "--port", str(free_port()), at=box)
    up = begin("up", at=box, variables=variables)
    try:
        assert wait_until((box / ".dflash" / "run.json").exists, 300)
        ran = dflash("down", at=box, environment=variables)
        said = up.communicate(timeout=300)[1]
        # `up` may have ended before `down` began
        if ran.code is not ExitCode.DONE:
            assert ran.code is ExitCode.PREFLIGHT
            assert f"{BUSY}: up, process {up.pid}" in ran.err
        assert up.returncode == ExitCode.DONE, said
    finally:
        up.kill()
        dflash("down", at=box, environment=variables).succeeded()
    assert dflash("status", "--json", at=box, environment=variables).document["data"]["state"] == "absent"
    assert not list(half_written(Deployment(box)))
