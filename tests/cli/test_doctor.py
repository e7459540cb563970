"""`doctor`, run as a person runs it."""

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, initialise
from tests.support.ports import free_port
from tests.support.recorded import plays

TOKEN = "hf_thisIsASecretThatNobodyShouldSee"


@pytest.fixture
def alone(tmp_path: Path) -> Mapping[str, str]:
    """An environment without a container engine, and with a hub that does not answer."""
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    return {**nowhere, "HF_TOKEN": TOKEN}


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    return place


def statuses(ran: Ran) -> dict[str, str]:
    """The checks of a document by name; none of them crashed, and the token is nowhere."""
    assert TOKEN not in ran.out + ran.err
    assert "itself failed" not in ran.out
    checks = ran.document["data"]["checks"]
    assert all(set(check) == {"name", "status", "saw", "fix", "seconds"} for check in checks)
    assert all(check["fix"] for check in checks if check["status"] in {"warning", "no"})
    return {check["name"]: check["status"] for check in checks}


def test_a_deployment_that_can_start(deployment: Path, alone: Mapping[str, str]) -> None:
    found = statuses(dflash("doctor", "--json", at=deployment, environment=alone).succeeded())
    assert found.keys() >= {"gpu", ".env", "leftovers", "engine", "memory", "disk", "port", "hub"}
    assert "no" not in found.values()


def test_what_says_no_ends_with_exit_code_3(deployment: Path, alone: Mapping[str, str]) -> None:
    (deployment / ".env").chmod(0o644)
    number = next(line for line in (deployment / ".env").read_text().splitlines() if line.startswith("DFLASH_PORT="))
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", int(number.partition("=")[2])))
        somebody.listen()
        ran = dflash("doctor", "--json", at=deployment, environment=alone)
    assert ran.code is ExitCode.PREFLIGHT
    found = statuses(ran)
    assert (found["port"], found[".env"]) == ("no", "no")
    assert ran.document["error"]["code"] == 3
    assert "port" in ran.document["error"]["message"]


def test_people_read_a_line_each_and_what_to_do_below_it(deployment: Path, alone: Mapping[str, str]) -> None:
    (deployment / ".env").chmod(0o644)
    ran = dflash("doctor", at=deployment, environment=alone)
    assert ran.code is ExitCode.PREFLIGHT
    lines = ran.out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("no      .env"))
    assert lines[place + 1].strip() == f"chmod 600 {deployment}/.env"
    assert "checks failed: .env" in ran.err
    assert TOKEN not in ran.out + ran.err


def test_a_slip_in_env_is_one_of_the_findings(deployment: Path, alone: Mapping[str, str]) -> None:
    with (deployment / ".env").open("a") as env:
        env.write("\nMAX_MODEL_LENGTH=1\n")
    ran = dflash("doctor", "--json", at=deployment, environment=alone)
    assert ran.code is ExitCode.PREFLIGHT
    assert statuses(ran)["plan"] == "no"


def test_without_a_deployment_the_machine_is_examined(tmp_path: Path, alone: Mapping[str, str]) -> None:
    plays(tmp_path / "bin", "nvidia-smi", "version-mismatch.txt", code=18)
    environment = {**alone, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    ran = dflash("doctor", "--json", at=tmp_path, environment=environment)
    assert ran.code in {ExitCode.DONE, ExitCode.PREFLIGHT}
    statuses(ran)
    assert "version mismatch" in ran.out
    assert not (tmp_path / ".env").exists()
