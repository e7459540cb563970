"""No text leaves with a secret in it."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.redact import REDACTED, Redactor, Secret, generate_key, redact_by_shape

KEYS = st.text(st.sampled_from("abcXYZ019_-"), min_size=8, max_size=40)


@given(KEYS, st.text(), st.text())
def test_a_secret_is_gone_wherever_it_stands(key: str, before: str, after: str) -> None:
    assert key not in Redactor([Secret(key)])(f"{before} {key} {after}").replace(REDACTED, "")


def test_the_tail_of_a_longer_secret_does_not_stay() -> None:
    short, long = Secret("abcdefgh"), Secret("abcdefgh-and-more")
    assert Redactor([short, long])("key=abcdefgh-and-more") == f"key={REDACTED}"


def test_a_secret_does_not_print() -> None:
    key = generate_key()
    assert key.reveal() not in f"{key} {key!r} {[key]} { ({'k': key}) }"


def test_a_key_has_256_bits_and_plain_characters() -> None:
    keys = {generate_key().reveal() for _ in range(50)}
    assert len(keys) == 50
    for key in keys:
        # base64 without padding: 43 characters of 6 bits hold 256 bits
        assert len(key) == 43
        assert set(key) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def test_a_list_of_keys_is_redacted_key_by_key() -> None:
    redact = Redactor([Secret("key-of-the-first,key-of-the-second")])
    assert redact("key-of-the-second, key-of-the-first,key-of-the-second") == f"{REDACTED}, {REDACTED}"


@given(KEYS, st.text(max_size=5), st.text(max_size=5))
def test_a_secret_inside_of_base64_is_found(key: str, before: str, after: str) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        written = encode(f"{before}{key}{after}".encode()).decode()
        shown = Redactor([Secret(key)])(written)
        assert REDACTED in shown
        # four characters hold three of the key, and those on its edges hold something else too
        assert len(written) - len(shown.replace(REDACTED, "")) >= 4 * len(key) / 3 - 2


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
        "token hf_abcdefghijklmnopqrstuvwx, of the hub",
        "Authorization: Bearer abcdefghijklmnop",
        "--api-key abcdefghijklmnop --port 8000",
        "x-api-key: abcdefghijklmnop",
        "X-Api-Key: abcdefghijklmnop",
        "[(b'x-api-key', b'abcdefghijklmnop'), (b'accept', b'*/*')]",
        "Headers({'host': '127.0.0.1', 'x-api-key': 'abcdefghijklmnop'})",
        "non-default args: {'api_key': ['abcdefghijklmnop']}",
        "MY_SECRET: abcdefghijklmnop",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    shown = redact_by_shape(text)
    assert "abcdefghij" not in shown
    assert REDACTED in shown


def test_figures_are_no_secrets() -> None:
    text = "num_key_value_heads=2 max_tokens: 4096 MAX_NUM_BATCHED_TOKENS=2048 DFLASH_NUM_SPEC_TOKENS=7"
    assert redact_by_shape(text) == text
