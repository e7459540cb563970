"""A body is read once, as its engine would read it, and what the gateway cannot read goes to no engine."""

import asyncio
import json
from typing import Any

import pytest

from dflash_deploy.serve.gateway import body as reading
from dflash_deploy.serve.gateway.asgi import ErrorAnswer, Message
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.body import MOST_MESSAGES, MOST_VALUES, Request, parsed
from tests.support.locked import FIRST, Engine, bearer, lock, request, status, talk
from tests.support.locked import KEYS as LOCKED
from tests.support.metered import ALICE, CHAT, KEYS, ask, asked
from tests.support.metered import Engine as Answering

USED = json.dumps({"usage": {"prompt_tokens": 22, "completion_tokens": 8}}).encode()
LIMITED_TO_200 = KEYS | {"DFLASH_API_KEYS": f"alice:{ALICE}:tokens_per_minute=200"}

ADDRESS = b'{"messages": [{"content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]}'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"not json", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a": 1}, {}', "invalid_json"),
        (b'\xff\xfe{"a": 1}', "invalid_json"),
        (b"[0" + b",0" * MOST_VALUES + b"]", "request_too_large"),
        (json.dumps({"messages": [{}] * (MOST_MESSAGES + 1)}).encode(), "request_too_large"),
        (json.dumps({"input": [{}] * (MOST_MESSAGES + 1)}).encode(), "request_too_large"),
    ],
    ids=range(7),
)
def test_what_is_not_read_is_not_passed_on(body: bytes, code: str) -> None:
    engine = Engine()
    gateway = lock(engine, LOCKED | {"MAX_BODY_MIB": "8"})
    sent = talk(gateway, request(CHAT, method="POST", headers=bearer(FIRST)), [body[:1], body[1:]])
    assert (status(sent), json.loads(sent[1]["body"])["error"]["code"]) == (400, code)
    assert not engine.seen


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a": 1, "a": 2, "b": [{"c": 3, "c": 4}]}', {"a": 2, "b": [{"c": 4}]}),
        ('{"a": "ä"}'.encode("utf-16"), {"a": "ä"}),
        ('{"a": 1}'.encode("utf-32-be"), {"a": 1}),
    ],
)
def test_what_engines_read_differently_they_get_in_one_reading(body: bytes, said: object) -> None:
    assert json.loads(parsed(body).body.decode()) == said


@pytest.mark.parametrize(
    "odd",
    [
        # Python refuses this number, llama.cpp reads it as an infinite one
        b'{"n": ' + b"9" * 5000 + b", " + ADDRESS[1:],
        b'{"messages": "text", ' + ADDRESS[1:],
        ADDRESS.replace(b"image_url", b"image\\u005furl"),
        ADDRESS.replace(b"http", b"HTTP"),
        b"\xef\xbb\xbf" + ADDRESS,
        ADDRESS.decode().encode("utf-16"),
    ],
    ids=range(6),
)
def test_no_spelling_hides_an_address(odd: bytes) -> None:
    engine = Engine()
    sent = talk(lock(engine), request(CHAT, method="POST", headers=bearer(FIRST)), [odd])
    assert (status(sent), json.loads(sent[1]["body"])["error"]["code"]) == (400, "image_url_refused")
    assert not engine.seen


def test_a_form_is_for_sounds_only() -> None:
    headers = [*bearer(FIRST), (b"content-type", b"Multipart/form-data; boundary=x")]
    for path, expected in (("/v1/audio/transcriptions", 200), (CHAT, 415), ("/completion", 415)):
        assert status(talk(lock(Engine()), request(path, method="POST", headers=headers), [b"--x--"])) == expected


def test_a_body_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stops() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(reading, "BODY_SECONDS", 0.01)
    with pytest.raises(ErrorAnswer, match="took longer") as refused:
        asyncio.run(reading.read({"path": CHAT, "headers": []}, stops, 1))
    assert refused.value.status == 408


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"max_tokens": 20}, 20),
        ({"max_completion_tokens": 30, "max_tokens": 20}, 30),
        ({"max_tokens": 20, "n": 3}, 60),
        ({"max_tokens": True, "n": -1}, 200),
        ({}, 200),
    ],
)
def test_what_a_request_may_use_is_reserved(said: dict[str, Any], tokens: int) -> None:
    assert Request(b"x" * 30, said).tokens(200) == 10 + tokens


@pytest.mark.parametrize(
    ("said", "sequences"),
    [
        ({}, 1),
        ([], 1),
        ({"n": 3}, 3),
        ({"n": 2, "best_of": 5}, 5),
        ({"n": True}, 1),
        ({"n_cmpl": 4}, 4),
        ({"prompt": "one"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"prompt": ["one", "two"]}, 2),
        ({"prompt": [[1, 2], [3]], "n": 3}, 6),
    ],
)
def test_choices_and_prompts_are_sequences(said: Any, sequences: int) -> None:
    assert Request(b"", said).sequences == sequences


@pytest.mark.parametrize(
    ("said", "characters"),
    [
        ({"prompt": "x" * 9}, 9),
        ({"prompt": ["x", "x" * 9]}, 9),
        ({"content": "x" * 9}, 9),
        ({"input": "x" * 9}, 9),
        ({"messages": [{"content": "x" * 4}, {"content": [{"text": "x" * 5}, {"image_url": {"url": "y" * 99}}]}]}, 9),
        ({"input": [{"content": [{"type": "input_text", "text": "x" * 9}]}]}, 9),
        ({"messages": "x", "prompt": 3, "input": [[1, 2]], "content": None}, 0),
    ],
)
def test_the_longest_text_is_that_of_a_prompt_or_of_a_whole_conversation(said: Any, characters: int) -> None:
    assert Request(b"", said).longest_text == characters


async def at_once(engine: Answering, door: DenyByDefault, body: bytes, count: int) -> list[int]:
    """The statuses of requests that are all let in or refused before the engine answers the first."""
    gate = engine.gate = asyncio.Event()
    running = [asyncio.create_task(asked(door, body)) for _ in range(count)]
    while sum(task.done() for task in running) + len(engine.bodies) < count:
        await asyncio.sleep(0)
    gate.set()
    return [(await task)[0] for task in running]


@pytest.mark.parametrize("stated", [200, 2 * 10**9, 10**30])
def test_no_stated_number_slips_through_the_reservation(stated: int) -> None:
    engine = Answering([USED])
    door = DenyByDefault(engine, LIMITED_TO_200)
    statuses = asyncio.run(at_once(engine, door, json.dumps({"max_tokens": stated}).encode(), 5))
    assert sorted(statuses) == [200, 429, 429, 429, 429]


def test_fifty_at_once_get_no_more_than_the_tokens_of_a_minute() -> None:
    """Fifty clients of a key with 200 tokens per minute got 1,500 in one burst."""
    engine = Answering([USED])
    door = DenyByDefault(engine, LIMITED_TO_200)
    body = json.dumps({"max_tokens": 8, "messages": [{"role": "user", "content": "Where?"}]}).encode()
    statuses = asyncio.run(at_once(engine, door, body, 50))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) * 30 < 200 + 30
    assert ask(door, body)[0] in {200, 429}
