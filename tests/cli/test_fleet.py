"""`fleet` before it reaches a host: what is refused, and what is written."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import edit_env, initialise, invoke
from tests.support.ports import free_port

TWO = "hosts: [{name: a, address: a.invalid}, {name: b, address: b.invalid}]\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", at=tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "arguments", "said", "hint"),
    [
        (None, ("up",), "fleet.yaml does not exist", "fleet init USER@HOST"),
        (None, ("init",), "no hosts are given", "fleet init nvidia@spark-a"),
        (None, ("init", "a b"), "`a b` is not a valid host", "[NAME=][USER@]ADDRESS"),
        (None, ("init", "x@a", "y@a"), "two hosts have the same name", "name them"),
        (TWO, ("init", "x@a"), "fleet.yaml already exists", "--force"),
        (TWO, ("status", "--host", "c"), "`c` is not a host of fleet.yaml", "valid hosts: a, b"),
        *(
            (TWO + "shape: one-engine\n", (verb, "--host", "a"), "one engine runs on all hosts together", "--host")
            for verb in ("up", "restart", "down")
        ),
        (TWO + "install: {wheel: x.whl}\n", ("up",), "x.whl is not a wheel of dflash-deploy", "make dist"),
    ],
)
def test_what_is_refused_before_a_host_is_reached(
    text: str | None, arguments: tuple[str, ...], said: str, hint: str, directory: Path
) -> None:
    file = directory / "fleet.yaml"
    if text is not None:
        file.write_text(text)
    ran = invoke("fleet", *arguments, "--dir", str(directory), "--json")
    assert ran.code is ExitCode.USAGE, ran.err
    assert said in ran.document["error"]["message"]
    assert hint in ran.document["error"]["hint"]
    assert (file.read_text() if file.exists() else None) == text


def test_a_directory_without_a_deployment_is_named(tmp_path: Path) -> None:
    ran = invoke("fleet", "init", "nvidia@a.invalid", "--dir", str(tmp_path))
    assert ran.code is ExitCode.USAGE
    assert "no deployment found" in ran.err


def test_the_facts_of_this_machine() -> None:
    data = (
        invoke("fleet", "facts", "--peer", "127.0.0.1", "--source", "127.0.0.1", "--json").succeeded().document["data"]
    )
    assert "127.0.0.1" in {link["address"] for link in data["links"]}
    assert data["peers"] == {"127.0.0.1": True}
    assert Path(data["assets"], "models").is_dir()
    assert data["engine"] is None


def test_weights_that_are_there_are_not_fetched(directory: Path) -> None:
    edit_env(directory, DFLASH_PORT=str(free_port()))
    ran = invoke("fleet", "fetch", "--dir", str(directory), "--json").succeeded()
    assert ran.document["data"] == {"state": "present"}
    assert "fetching" not in ran.err
