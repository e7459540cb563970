"""The real Compose reads what is written: the files of every profile, and values as they were meant."""

import json
import subprocess
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.runtime.compose import compose_command
from tests.support.cli import dflash, edit_env, initialise, invoke
from tests.support.container_engine import Engine


@pytest.mark.parametrize("profile", load_catalog().profiles)
def test_every_profile_is_accepted_with_and_without_its_drafter(engine: Engine, tmp_path: Path, profile: str) -> None:
    options = ("--runtime", "compose", *(("--master-addr", "10.0.0.1") if profile.endswith("spark-x2") else ()))
    initialise("--profile", profile, *options, at=tmp_path)
    assert rejections(tmp_path) == []
    edit_env(tmp_path, DFLASH_DRAFTER="off")
    invoke("render", "--dir", str(tmp_path)).succeeded()
    assert rejections(tmp_path) == []


def rejections(directory: Path) -> list[str]:
    """What Compose says against the files, as a person calls it and as every call of ours does."""
    commands = (["docker", "compose", "config", "-q"], compose_command(Deployment(directory), "config", "-q"))
    ran = [subprocess.run(one, cwd=directory, capture_output=True, text=True, check=False) for one in commands]
    return [f"{done.returncode}: {done.stderr}" for done in ran if done.returncode or done.stderr]


@pytest.mark.parametrize(
    "value",
    [
        "two names",
        "pa$$word$HOME",
        "${HOME}",
        '--compilation-config "{\\"mode\\": 0}"'.replace("\\", ""),
        "# not a comment",
        "a=b=c",
        "käse",
        '"quoted"',
        """--hf-overrides '{"a": [1, "b"]}' --seed 3""",
    ],
)
def test_compose_reads_a_value_as_it_was_meant(engine: Engine, tmp_path: Path, value: str) -> None:
    initialise("--profile", "cpu", "--runtime", "compose", at=tmp_path)
    deployment = Deployment(tmp_path)
    deployment.write_env({**deployment.values, "EXTRA_ARGS": value, "VLLM_API_KEY": deployment.key.reveal()})
    assert Deployment(tmp_path).values["EXTRA_ARGS"] == value
    done = subprocess.run(
        compose_command(deployment, "config", "--format", "json"), capture_output=True, text=True, check=True
    )
    read = json.loads(done.stdout)["services"]["engine"]["environment"]["EXTRA_ARGS"]
    # `config` prints a dollar doubled, so that its output can be read again
    assert read.replace("$$", "$") == value


def test_the_fragments_can_be_used_by_hand(engine: Engine, tmp_path: Path) -> None:
    initialise("--profile", "h100", at=tmp_path)
    root = Path(__file__).parents[2] / "compose"
    files = [
        part for name in ("base", "vllm", "drafter", "port", "nvidia") for part in ("-f", str(root / f"{name}.yaml"))
    ]
    command = ["docker", "compose", "--env-file", str(tmp_path / ".env"), *files, "config", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_sees_engine_and_compose(engine: Engine, tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "compose", at=tmp_path)
    checks = {check["name"]: check for check in dflash("doctor", "--json", at=tmp_path).document["data"]["checks"]}
    for name in ("container engine", "compose"):
        assert checks[name]["status"] == "ok", checks[name]
    assert checks[".env"]["status"] == "ok"
