"""What becomes of the keys in `.env.last`: `cp .env.last .env` makes no replaced or revoked key valid again."""

import stat
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.dotenv import with_keys_of
from dflash_deploy.redact import Secret

OLD, NEW, ALICE = "o" * 43, "n" * 43, "a" * 43
BEFORE = f"# mine\nVLLM_API_KEY={OLD}\nMAX_MODEL_LEN=300\nDFLASH_API_KEYS=alice:{ALICE}\nPROXY_HEADER={OLD}\n"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    (tmp_path / ".env").write_text(BEFORE)
    return Deployment(tmp_path).with_values({"MAX_MODEL_LEN": "400"})


def last(deployment: Deployment) -> str:
    assert stat.S_IMODE(deployment.last_env_file.stat().st_mode) == 0o600
    return deployment.last_env_file.read_text()


def test_a_revoked_key_is_not_in_the_file_before(deployment: Deployment) -> None:
    assert ALICE in last(deployment)
    deployment.with_further_keys(())
    assert last(deployment) == BEFORE.replace(f"alice:{ALICE}", "")


def test_a_replaced_key_is_not_in_the_file_before(deployment: Deployment) -> None:
    deployment.with_new_key(Secret(NEW))
    assert last(deployment) == BEFORE.replace(OLD, NEW)


def test_a_directory_without_that_file_gets_none(deployment: Deployment) -> None:
    deployment.last_env_file.unlink()
    deployment.with_further_keys(()).with_new_key()
    assert not deployment.last_env_file.exists()


@pytest.mark.parametrize("damaged", [b"\xff\xfe", b'VLLM_API_KEY="open\n'])
def test_a_damaged_file_keeps_no_key_valid(damaged: bytes, deployment: Deployment) -> None:
    deployment.last_env_file.write_bytes(damaged)
    assert deployment.with_further_keys(()).further_keys == ()
    assert deployment.last_env_file.read_bytes() == damaged


def test_a_key_that_was_added_is_kept_when_the_file_is_copied_back(deployment: Deployment) -> None:
    text = deployment.env_file.read_text()
    assert with_keys_of(text, "MAX_MODEL_LEN=1\n").count(ALICE) == 1
    assert with_keys_of(text, text) == text
