"""The token goes to a host with TLS or to this machine, and to no other."""

import pytest

from dflash_deploy.redact import Secret
from dflash_deploy.weights.hub import HUB, Source

TOKEN = Secret("hf_abcdefghijklmnop")


@pytest.mark.parametrize(
    ("endpoint", "goes"),
    [
        (HUB, True),
        ("https://mirror.example", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost", True),
        ("http://[::1]:8080", True),
        ("http://mirror.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://10.0.0.7:8080", False),
    ],
)
def test_the_token_needs_tls_or_this_machine(endpoint: str, goes: bool) -> None:
    assert bool(Source.of(TOKEN, endpoint).token.reveal()) is goes
