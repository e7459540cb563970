"""The document with which the terminal of a fleet asks a host to accept keys."""

import json
from http import HTTPStatus

import pytest

from dflash_deploy.errors import BadInput
from dflash_deploy.features.fleet.file import Proof, WantedKeys, read_wanted
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.gateway.keys import accepted

KEY = ApiKey("alice", "a" * 20, "infer", in_flight=3, tokens_per_minute=9)
WANTED = WantedKeys(
    (accepted(KEY),), (Proof(ApiKey("owner", "o" * 20), HTTPStatus.UNAUTHORIZED),), Secret("n" * 20), (KEY,)
)


def test_a_host_reads_what_the_terminal_wrote() -> None:
    read = read_wanted(WANTED.document())
    assert (read.also, read.proofs, read.further) == (WANTED.also, WANTED.proofs, WANTED.further)
    assert read.owner is not None
    assert read.owner.reveal() == "n" * 20
    assert read_wanted(WantedKeys().document()) == WantedKeys()


@pytest.mark.parametrize(
    "changed",
    [
        {"also": [{"name": "alice", "sha256": "zz", "scope": "infer"}]},
        {"also": [{"name": "a b", "sha256": "0" * 64, "scope": "infer"}]},
        {"also": [{"name": "alice", "sha256": "0" * 64, "scope": "everything"}]},
        {"proofs": [{"name": "alice", "key": "secret-of-alice\n", "scope": "all", "status": 200}]},
        {"proofs": [{"name": "alice", "key": "secret-of-alice1", "scope": "all", "status": 500}]},
        {"owner": "secret $HOME"},
        {"further": "alice:secret-of-alice1:everything"},
    ],
)
def test_a_document_that_is_not_valid_is_refused_without_its_keys(changed: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="standard input has no list of keys") as refused:
        read_wanted(json.dumps({**json.loads(WANTED.document()), **changed}).encode())
    assert "secret" not in f"{refused.value.message}{refused.value.hint}"


def test_no_document_at_all_is_refused() -> None:
    for content in (b"", b"\xff", b"[]", b"{}", b" " * (1 << 21)):
        with pytest.raises(BadInput):
            read_wanted(content)
