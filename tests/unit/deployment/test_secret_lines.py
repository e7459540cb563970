"""What is secret in a `.env` is known although its line cannot be parsed."""

import time

import pytest

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.dotenv import names_a_secret, secrets_in
from dflash_deploy.redact import Redactor
from dflash_deploy.serve.settings import Settings

# As `generate_key` makes them. Names of cases hold it, and must be the same in each process that runs some of them.
KEY = "OLk-fLTwQd1CzNnu7zx7X6_s01Huhn2Go-9s6pe0xdM"


@pytest.mark.parametrize(
    "line",
    [
        f"VLLM_API_KEY={KEY}",
        f'VLLM_API_KEY="{KEY}',
        f"VLLM_API_KEY='{KEY}\nMAX_NUM_SEQS=4",
        f"VLLM_API_KEY: {KEY}",
        f"VLLM_API_KEY {KEY}",
        f"vllm_api_key = {KEY}  # mine",
        f"VLLM_API_KEYS={KEY}",
        f"VLLM_API_KYE={KEY[:20]}",
        f"VLM_APIKEY={KEY[:20]}",
        f"HF_TOKE={KEY[:20]}",
        f"export VLLM_API_KEY={KEY};",
        f"  #VLLM_API_KEY={KEY}",
        f"# was {KEY}",
        f"={KEY}",
        KEY,
        f"SOMETHING={KEY}",
        f'"VLLM_API_KEY": "{KEY}",',
        "\0".join(f"VLLM_API_KEY={KEY}"),
        f"\ufeffVLLM_API_KEY={KEY}",
    ],
)
def test_a_key_is_known_however_damaged_its_line_is(line: str) -> None:
    shown = Redactor(secrets_in(f"{Settings.max_model_len}=4096\n{line}\nDFLASH_PORT=8000\n"))(
        f"the key {KEY[:20]}{KEY[20:]} and {KEY[:20]}"
    )
    assert KEY not in shown
    assert "[redacted]" in shown


def test_the_settings_of_a_deployment_are_not_secrets() -> None:
    text = dotenv.fill_template(
        {"MODEL_HOST_PATH": "/models/a-model-with-a-long-name", "MAX_NUM_BATCHED_TOKENS": "10485760"}
    )
    assert not [secret.reveal() for secret in secrets_in(text)]
    assert not any(map(names_a_secret, ("MAX_NUM_BATCHED_TOKENS", "DFLASH_NUM_SPEC_TOKENS", "NCCL_DEBUG", "HF_HOME")))


def test_a_huge_file_is_read_in_a_moment() -> None:
    for text in (
        " " * dotenv.MOST_BYTES,
        "#" * dotenv.MOST_BYTES,
        "".join(f"N{n}={n}\n" for n in range(25_000)),
        "a " * 128_000,
    ):
        started = time.process_time()
        list(secrets_in(text))
        assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "line",
    [
        f"VLLM_API_KEYS={KEY}",
        f"vllm_api_key={KEY}",
        f"VLLM_API_KYE={KEY}",
        f"MINE={KEY}",
        f"EXTRA_ARGS='--api-key {KEY}'",
        "HF_ENDPOINT=http://bob:passphrase@hub:80",
        "VLLM_CACHE=s3://bucket?token=passphrase",
    ],
)
def test_shared_settings_hold_no_secret_under_another_name(line: str) -> None:
    shared = dotenv.shareable(f"MAX_NUM_SEQS=4\nNCCL_DEBUG=INFO\n{line}\n")
    assert KEY not in shared
    assert "passphrase" not in shared
    assert "[redacted]" in shared
    assert "MAX_NUM_SEQS=4\nNCCL_DEBUG=INFO\n" in shared
