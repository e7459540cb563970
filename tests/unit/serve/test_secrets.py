"""The engine reads its secrets from the deployment's `.env`, and reads them as everybody else does."""

import io
from pathlib import Path

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRETS_FILE, read_secrets

KEYS = st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=60)


@given(KEYS, KEYS)
def test_the_file_is_read_as_python_dotenv_reads_it(
    tmp_path_factory: pytest.TempPathFactory, key: str, tok: str
) -> None:
    text = fill_template({"VLLM_API_KEY": key, "HF_TOKEN": tok})
    path = tmp_path_factory.mktemp("env") / ".env"
    path.write_text(text)
    said = dotenv_values(stream=io.StringIO(text))
    assert read_secrets({SECRETS_FILE: str(path)}) == {"VLLM_API_KEY": said["VLLM_API_KEY"]}


@pytest.mark.parametrize(
    "line", ["export VLLM_API_KEY=abc", "VLLM_API_KEY='abc'", 'VLLM_API_KEY="abc"', " VLLM_API_KEY = abc  # mine"]
)
def test_hand_written_forms_are_read(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text(line + "\n")
    assert read_secrets({SECRETS_FILE: str(tmp_path / ".env")}) == {"VLLM_API_KEY": "abc"}


def test_nothing_but_the_key_is_taken_from_the_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MODEL_HOST_PATH=/x\nVLLM_API_KEY=abc\nHF_TOKEN=hf_abc\n")
    assert set(read_secrets({SECRETS_FILE: str(tmp_path / ".env")})) == {"VLLM_API_KEY"}


@pytest.mark.parametrize("text", ["", "VLLM_API_KEY=\n", 'VLLM_API_KEY="ab#cd"\n', "VLLM_API_KEY='ab cd'\n"])
def test_no_key_or_one_that_others_read_differently_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / ".env").write_text(text)
    with pytest.raises(Refused, match="would answer any client"):
        read_secrets({SECRETS_FILE: str(tmp_path / ".env")})


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_secrets({SECRETS_FILE: str(tmp_path / "absent")})


FURTHER = "first-of-the-clients,second-of-the-clients"


def test_the_further_keys_come_from_the_file_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"VLLM_API_KEY=abc\nDFLASH_API_KEYS={FURTHER}\n")
    keys = api_keys(read_secrets({SECRETS_FILE: str(tmp_path / ".env")}))
    assert tuple(key.key for key in keys) == ("abc", "first-of-the-clients", "second-of-the-clients")


@pytest.mark.parametrize("environment", [{}, {"VLLM_API_KEY": " "}, {"DFLASH_API_KEYS": FURTHER}])
def test_without_the_first_key_there_is_none(environment: dict[str, str]) -> None:
    with pytest.raises(Refused, match="VLLM_API_KEY is not set"):
        api_keys(environment)


@pytest.mark.parametrize("further", ["few", f"{FURTHER},few", f"{FURTHER}, with-a-space-before", "sixteen-letters-ä"])
def test_a_further_key_that_means_nothing_is_refused_unseen(further: str) -> None:
    with pytest.raises(Refused, match="DFLASH_API_KEYS") as refusal:
        api_keys({"VLLM_API_KEY": "abc", "DFLASH_API_KEYS": further})
    assert further.rsplit(",", maxsplit=1)[-1] not in f"{refusal.value} {refusal.value.hint}"
