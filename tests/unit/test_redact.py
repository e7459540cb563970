"""No text leaves with a secret in it."""

import base64
import time

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


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Basic dXNlcjpwYXNzd29yZA==",
        "sent Basic dXNlcjpwYXNzd29yZA== to the proxy",
        "{'authorization': 'Token hidden-word'}",
        "Set-Cookie: session=hidden-word; Path=/",
        "'cookie': 'a=b; c=hidden-word'",
        "GET /v1/models?a=1&token=hidden-word HTTP/1.1",
        "https://cdn/x?X-Amz-Signature=hidden-word&y=2",
        "remote https://github.com ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijklmnop",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
        "AKIAIOSFODNN7EXAMPLE1234",
        "password=hidden-word",
        "VLLM_API_KEYS=hidden-word",
        "-----BEGIN PRIVATE KEY-----\nhidden-word",
        "cloned https://bob:hidden-word@example.com/x",
    ],
)
def test_headers_addresses_and_tokens_of_services_are_taken_out(text: str) -> None:
    shown = redact_by_shape(text)
    assert REDACTED in shown
    for part in ("hidden-word", "dXNlcjpwYXNz", "ghp_ab", "11ABCDEFG", "dozjgNry", "IOSFODNN"):
        assert part not in shown


@pytest.mark.parametrize("secret", ["pw", "p@ss", "p/ss:word", "12345", "p%40ss", "[pw]", "12/ab", "8000/v1", "1?x"])
def test_a_password_in_an_address_is_never_shown(secret: str) -> None:
    shown = Redactor()(f"HTTPS_PROXY=http://bob:{secret}@proxy:3128/ fails")
    assert shown == f"HTTPS_PROXY=http://{REDACTED}@proxy:3128/ fails"
    assert Redactor()("'https://token@proxy' fails") == f"'https://{REDACTED}@proxy' fails"


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1 answers, model a@b",
        "http://box:8000/@scope/package",
        "http://127.0.0.1:8000/v1/org@rev http://localhost:8000/a@b http://[::1]:8000/v1?x=a@b",
        "docker://ghcr.io/engine:1.0@sha256:abc",
        "Basic arithmetic, basic questions; the token budget; a cookie recipe",
        "eos_token='<end>' bos_token_id=1",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_by_shape(text) == text


def test_a_long_line_is_redacted_in_a_moment() -> None:
    for part in ("://", "a.b", "://a:b", "?token", "eyJ", "Basic ", "password=", "-----BEGIN PRIVATE KEY-----"):
        started = time.process_time()
        redact_by_shape(part * (100_000 // len(part)) + "@")
        assert time.process_time() - started < 3, part


def test_figures_are_no_secrets() -> None:
    text = "num_key_value_heads=2 max_tokens: 4096 MAX_NUM_BATCHED_TOKENS=2048 DFLASH_NUM_SPEC_TOKENS=7"
    assert redact_by_shape(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "docker login -u me -p hunter2hunter2 nvcr.io",
        "sshpass -p hunter2hunter2 ssh box",
        "mysql -u root -phunter2hunter2 app",
        "curl -u me:hunter2hunter2 https://x/y",
        "tool --password hunter2hunter2",
        "DB_PASS=hunter2hunter2",
        "PG_PWD=hunter2hunter2",
        '{"redis_password": "hunter2hunter2"}',
    ],
)
def test_passwords_of_other_commands_have_no_shape_of_their_own(text: str) -> None:
    assert "hunter2" not in redact_by_shape(text)


@pytest.mark.parametrize("text", ["docker run -p 8000:8000 x", "docker login -u me --password-stdin x", "PWD=/home/me"])
def test_what_looks_like_a_password_option_stays(text: str) -> None:
    assert redact_by_shape(text) == text
