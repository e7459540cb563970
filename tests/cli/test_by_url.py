"""`status` and `connect` on an endpoint that was not started here; `test` and `bench` have tests of their own."""

import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, invoke
from tests.support.openai_server import KEY, MODEL, Engine, serving
from tests.support.ports import free_port


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Engine()) as url:
        yield url


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "it's the key"
    file.write_text(f"{KEY}\n")
    return file


def shown(*args: str) -> Ran:
    ran = invoke(*args)
    assert KEY not in ran.out + ran.err
    return ran


@pytest.mark.parametrize("ending", ["", "/v1"])
def test_status_asks_for_a_generation(url: str, key: Path, ending: str) -> None:
    data = shown("status", "--url", f"{url}{ending}", "--key-file", str(key), "--json").succeeded().document["data"]
    assert (data["state"], data["model"], data["endpoint"]) == ("ready", MODEL, f"{url}/v1")
    ran = shown("status", "--url", url, "--key-file", str(key), "--model", MODEL).succeeded()
    assert "state     ready, one generation in" in ran.out
    assert f"model     {MODEL}" in ran.out


def test_status_says_why_nothing_is_answered(url: str) -> None:
    for place, said in (
        (url, "the api key is refused: get /v1/models answered 401"),
        (f"http://127.0.0.1:{free_port()}", "refused"),
    ):
        data = shown("status", "--url", place, "--json").succeeded().document["data"]
        assert data["state"] == "unresponsive"
        assert said in data["problem"].lower()
        assert "--key-file" in data["do"]


def test_connect_asks_for_the_model_and_names_the_file_of_the_key(url: str, key: Path, tmp_path: Path) -> None:
    options = ("--url", f"{url}/v1", "--key-file", str(key), "--dir", str(tmp_path))
    ran = shown("connect", "codex", *options).succeeded()
    assert tomllib.loads(ran.out)["model"] == MODEL
    text = shown("connect", "curl", *options).succeeded().out
    assert "dflash-deploy" not in text
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=dict(os.environ), check=False)
    assert "Paris" in done.stdout, done.stderr
    data = shown("connect", "curl", *options, "--json").succeeded().document["data"]
    assert (data["endpoint"], data["model"]) == (f"{url}/v1", MODEL)
    told = subprocess.run(
        ["bash", "-c", f'{data["key"]}; echo "$DFLASH_API_KEY"'], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"{KEY}\n"
    assert f"endpoint   {url}/v1, model {MODEL}" in shown("connect", *options).succeeded().out


def test_connect_asks_nothing_if_the_model_is_named(tmp_path: Path) -> None:
    options = ("--url", f"http://127.0.0.1:{free_port()}", "--dir", str(tmp_path))
    ran = shown("connect", "codex", *options, "--model", "mine").succeeded()
    assert tomllib.loads(ran.out)["model"] == "mine"
    ran = shown("connect", "codex", *options)
    assert ran.code is ExitCode.NOT_READY
    assert "nothing answers" in ran.err
    assert "--model" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("status", "--url", "box"), "not a valid URL"),
        (("status", "--url", "http://box:1", "--since", "2h"), "--url asks another endpoint"),
        (("status", "--model", "m"), "--key-file and --model belong to --url"),
        (("connect", "--model", "m"), "--key-file and --model belong to --url"),
        (("connect", "emacs", "--url", "http://box:1", "--model", "m"), "`emacs` is not a known client"),
        (("connect", "curl", "--url", "box", "--model", "m"), "not a valid URL"),
    ],
)
def test_options_that_do_not_go_together_are_refused(args: tuple[str, ...], said: str) -> None:
    ran = shown(*args)
    assert ran.code is ExitCode.USAGE
    assert said in " ".join(ran.err.split())
