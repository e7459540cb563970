"""No text leaves with a secret in it."""

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.redact import REDACTED, Redactor, Secret, generate_key

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
