"""`set` on the command line: what changed, what can be set, and what is refused; and `models add`."""

from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", at=tmp_path)
    return tmp_path


def test_a_setting_is_changed_and_taken_back(deployment: Path) -> None:
    before = (deployment / ".env").read_text()
    data = dflash("set", "ALLOWED_ORIGINS=https://chat.example", "--json", at=deployment).succeeded().document["data"]
    assert [(row["name"], row["old"], row["new"]) for row in data["changed"]] == [
        ("ALLOWED_ORIGINS", "", "https://chat.example")
    ]
    assert data["restarts"] == "engine"
    assert "ALLOWED_ORIGINS=https://chat.example\n" in (deployment / ".env").read_text()
    assert (deployment / ".env").stat().st_mode & 0o777 == 0o600
    dflash("set", "ALLOWED_ORIGINS=", at=deployment).succeeded()
    assert (deployment / ".env").read_text() == before


def test_settings_are_listed_by_a_word(deployment: Path) -> None:
    data = dflash("set", "--list", "origin", "--json", at=deployment).succeeded().document["data"]
    assert [row["name"] for row in data["settings"]] == ["ALLOWED_ORIGINS"]


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("MAX_NUM_SEQS=many", ExitCode.USAGE, "MAX_NUM_SEQS=many is not a positive whole number"),
        ("MAX_NUM_SEKS=1", ExitCode.USAGE, "did you mean MAX_NUM_SEQS?"),
        ("PORT=8001", ExitCode.USAGE, "did you mean DFLASH_PORT?"),
        ("VLLM_API_KEY=mine", ExitCode.USAGE, "is a secret"),
        ("ALLOWED_ORIGINS=chat.example", ExitCode.USAGE, "is not a valid origin"),
        ("MAX_NUM_SEQS", ExitCode.USAGE, "is not of the form NAME=VALUE"),
    ],
)
def test_what_up_would_refuse_is_not_written(deployment: Path, word: str, code: ExitCode, said: str) -> None:
    before = (deployment / ".env").read_bytes()
    ran = dflash("set", word, at=deployment)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert (deployment / ".env").read_bytes() == before


def test_an_entry_of_a_model_is_printed_or_written(tmp_path: Path) -> None:
    place = str(asset("models/tiny/gguf/target.gguf"))
    data = dflash("models", "add", place, "--drafter", "off", "--json", at=tmp_path).succeeded().document["data"]
    assert data["file"] is None
    assert f"name: {data['name']}" in data["entry"]
    written = dflash("models", "add", place, "--drafter", "off", "--to", "mine", "--json", at=tmp_path).succeeded()
    assert (tmp_path / written.document["data"]["file"]).read_text() == data["entry"]


def test_a_mirror_is_told_to_get_the_token(tmp_path: Path) -> None:
    dflash("init", "--profile", "cpu", "--runtime", "native", at=tmp_path).succeeded()
    said = dflash("set", "HF_ENDPOINT=https://mirror.example.org", at=tmp_path).succeeded().out
    assert "HF_TOKEN goes to https://mirror.example.org too" in said
