"""Keys with names: how they are written, what they open, and what a running gateway notices of a change."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.redact import SHORTEST_KEY, Redactor, Secret
from dflash_deploy.serve.api_keys import KEY, LARGEST_LIMIT, ApiKey, Scope, keys_in
from dflash_deploy.serve.gateway.keys import KEYS_FILE, Keyring, document_of, opens
from dflash_deploy.serve.refusal import Refused

OWNER, ALICE, BOB = "key-of-the-owner-0123", "key-of-alice-01234567", "key-of-bob-0123456789"

LETTERS = "abcxyz019_-"
NAMES = st.builds(str.__add__, st.sampled_from("abc019"), st.text(LETTERS, max_size=14))
LIMITS = st.none() | st.integers(1, LARGEST_LIMIT)
SCOPES = st.sampled_from(["all", "infer", "metrics"])
KEYS = st.builds(ApiKey, NAMES, st.text(LETTERS + "ABZ", min_size=16, max_size=50), SCOPES, LIMITS, LIMITS)


@given(st.lists(KEYS, unique_by=lambda key: key.name, max_size=5))
def test_what_is_written_is_read_again(keys: list[ApiKey]) -> None:
    assert list(keys_in(",".join(key.written() for key in keys))) == keys


def test_the_old_form_is_read_and_opens_everything() -> None:
    first, second = keys_in(f"{ALICE},{BOB}")
    assert (first.name, first.key, first.scope) == ("key-1", ALICE, "all")
    assert (second.name, second.written()) == ("key-2", BOB)


def test_a_named_key_opens_generation_unless_it_says_otherwise() -> None:
    alice, scraper = keys_in(f"alice:{ALICE}:in_flight=4:tokens_per_minute=60000,scraper:{BOB}:metrics")
    assert (alice.scope, alice.in_flight, alice.tokens_per_minute) == ("infer", 4, 60000)
    assert (scraper.scope, scraper.in_flight) == ("metrics", None)


@pytest.mark.parametrize(
    "text",
    [
        f"Alice:{ALICE}",
        f"owner:{ALICE}",
        f"key-1:{ALICE}",
        f"a-name-of-sixteen:{ALICE}",
        f":{ALICE}",
        f"{ALICE}:alice",
        "alice:short",
        "alice:",
        f"alice:{ALICE}:everything",
        f"alice:{ALICE}:in_flight=0",
        f"alice:{ALICE}:in_flight=-1",
        f"alice:{ALICE}:in_flight=1e3",
        f"alice:{ALICE}:in_flight=٣",
        f"alice:{ALICE}:in_flight={10**10}",
        f"alice:{ALICE}:per_day=3",
        f"alice:{ALICE}:",
        f"alice:{ALICE},alice:{BOB}",
        f"alice:{ALICE}, bob:{BOB}",
        ",".join([ALICE] * 1001),
    ],
)
def test_what_means_nothing_is_refused_without_a_part_of_it(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        keys_in(text)
    said = f"{refusal.value.message} {refusal.value.hint}"
    assert ALICE not in said
    assert BOB not in said


def test_a_key_with_a_name_is_redacted_and_its_name_is_not() -> None:
    redact = Redactor([Secret(f"prometheus:{ALICE}:metrics,bob:{BOB}:in_flight=4")])
    shown = redact(f"prometheus got {ALICE}, bob has {BOB}, 4 in flight: metrics")
    assert shown == "prometheus got [redacted], bob has [redacted], 4 in flight: metrics"


@pytest.mark.parametrize(
    ("scope", "method", "path", "open_"),
    [
        ("all", "POST", "/sleep", True),
        ("infer", "POST", "/v1/chat/completions", True),
        ("infer", "POST", "/v1/messages", True),
        ("infer", "GET", "/v1/models", True),
        ("infer", "GET", "/v1/models/tiny", True),
        ("infer", "GET", "/v1/responses/resp_1", True),
        ("infer", "GET", "/metrics", False),
        ("infer", "POST", "/sleep", False),
        ("infer", "POST", "/invocations", False),
        ("infer", "POST", "/v1/load_lora_adapter", False),
        ("infer", "GET", "/v1/models/../../metrics", False),
        ("infer", "GET", "/v1/models//x", False),
        ("infer", "GET", "/V1/models", False),
        ("metrics", "GET", "/metrics", True),
        ("metrics", "HEAD", "/metrics", True),
        ("metrics", "POST", "/metrics", False),
        ("metrics", "GET", "/metrics/", False),
        ("metrics", "GET", "/v1/models", False),
    ],
)
def test_what_a_scope_opens(scope: Scope, method: str, path: str, open_: bool) -> None:
    assert opens(scope, method, path) is open_


def keyring(file: Path) -> Keyring:
    return Keyring({"VLLM_API_KEY": OWNER, "DFLASH_API_KEYS": f"alice:{ALICE}", KEYS_FILE: str(file)})


def name_of(ring: Keyring, key: str) -> str | None:
    found = ring.find(key.encode())
    return found.name if found else None


def replace(file: Path, text: str) -> None:
    staged = file.with_name("staged")
    staged.write_text(text)
    staged.replace(file)


def test_without_the_file_the_environment_has_the_keys(tmp_path: Path) -> None:
    ring = keyring(tmp_path / "absent.json")
    assert [name_of(ring, key) for key in (OWNER, ALICE, BOB)] == ["owner", "alice", None]


def test_a_key_comes_and_goes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(document_of(keys_in(f"alice:{ALICE}")))
    ring = keyring(file)
    replace(file, document_of(keys_in(f"bob:{BOB}")))
    assert [name_of(ring, key) for key in (OWNER, ALICE, BOB)] == ["owner", None, "bob"]
    replace(file, document_of(()))
    assert [name_of(ring, key) for key in (OWNER, ALICE, BOB)] == ["owner", None, None]


def test_the_file_has_no_key(tmp_path: Path) -> None:
    text = document_of(keys_in(f"alice:{ALICE}"))
    assert ALICE not in text
    assert sha256(ALICE.encode()).hexdigest() in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 2, "keys": []}',
        '{"schema": 1}',
        '{"schema": 1, "keys": [{"name": "bob"}]}',
        document_of(keys_in(f"bob:{BOB}")).replace(sha256(BOB.encode()).hexdigest(), "ab"),
        document_of(keys_in(f"bob:{BOB}")).replace('"infer"', '"root"'),
        document_of(keys_in(f"bob:{BOB}")).replace('"in_flight": null', '"in_flight": true'),
        document_of(keys_in(f"bob:{BOB}")) + " " * (1 << 20),
    ],
)
def test_a_damaged_file_lets_nobody_in_or_out(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    file.write_text(document_of(keys_in(f"alice:{ALICE}")))
    ring = keyring(file)
    replace(file, text)
    assert [name_of(ring, key) for key in (OWNER, ALICE, BOB)] == ["owner", "alice", None]
    assert name_of(ring, ALICE) == "alice"
    # once, not with each request
    assert capfd.readouterr().err.count("cannot be read") == 1


def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(document_of(keys_in(f"bob:{BOB}")))
    ring = keyring(file)
    file.unlink()
    assert [name_of(ring, key) for key in (ALICE, BOB)] == [None, "bob"]


def test_the_shortest_key_of_a_list_is_redacted() -> None:
    assert KEY.fullmatch("k" * SHORTEST_KEY)
    assert not KEY.fullmatch("k" * (SHORTEST_KEY - 1))
