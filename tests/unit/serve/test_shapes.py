"""RECORD_SHAPES records lengths, times and shared beginnings of requests, and none of their text."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve.gateway import shapes
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.keys import LIMITS_DIRECTORY
from tests.support.metered import CHUNK, DONE, KEYS, Engine, ask, stream_of

WORDS = [f"word{number} " for number in range(3000)]


def said(words: int, *more: str, tools: object = None) -> dict[str, Any]:
    """A conversation that begins with so many words, about two tokens each."""
    messages = [
        {"role": "user", "content": "".join(WORDS[:words])},
        *({"role": "user", "content": one} for one in more),
    ]
    return {"model": "tiny", "messages": messages, "tools": tools}


def recorded(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*")) for line in file.read_text().splitlines()]


def numbers(directory: Path, *requests: tuple[dict[str, Any], int]) -> list[list[int]]:
    one = shapes.Shapes(directory)
    for at, (body, tokens) in enumerate(requests):
        one.record(at, body, tokens, 8)
    lines = recorded(directory)
    assert [len(line["hash_ids"]) for line in lines] == [-(-tokens // shapes.BLOCK) for _, tokens in requests]
    return [line["hash_ids"] for line in lines]


def answering(directory: Path | None, **settings: str) -> DenyByDefault:
    where = {} if directory is None else {LIMITS_DIRECTORY: str(directory / "limits")}
    return DenyByDefault(Engine([CHUNK, DONE], b"text/event-stream"), KEYS | where | settings)


def test_a_request_leaves_its_lengths_and_none_of_its_text(tmp_path: Path) -> None:
    door = answering(tmp_path, RECORD_SHAPES="on")
    for _ in range(2):
        assert ask(door, stream_of(messages=[{"role": "user", "content": "my secret"}]))[0] == 200
    assert ask(door, b"not json")[0] == 400
    (file,) = (tmp_path / "shapes").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    first, second = recorded(file.parent)
    assert first == {"timestamp": 0, "input_length": 7, "output_length": 5, "hash_ids": [0]}
    assert second["timestamp"] >= 0
    assert "secret" not in file.read_text()


def test_times_are_milliseconds_since_the_first_request(tmp_path: Path) -> None:
    one = shapes.Shapes(tmp_path)
    assert [one.milliseconds(now) for now in (5.0, 6.5, 5.0)] == [0, 1500, 0]


def test_nothing_is_recorded_unless_it_is_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(answering(tmp_path), stream_of())[0] == 200
    assert not (tmp_path / "shapes").exists()
    assert ask(answering(None, RECORD_SHAPES="on"), stream_of())[0] == 200
    assert "RECORD_SHAPES: this deployment has no directory" in capsys.readouterr().err


def test_a_longer_conversation_has_the_blocks_of_the_one_before(tmp_path: Path) -> None:
    first, second, third = numbers(
        tmp_path, (said(1000), 2000), (said(1000, "and more " * 200), 2420), (said(1000, "another " * 200), 2420)
    )
    assert first == [0, 1, 2, 3]
    # the last block of the first one was not whole
    assert second[:3] == third[:3] == first[:3]
    assert not {*second[3:]} & {*third[3:]}


def test_blocks_are_shared_also_if_tokens_have_another_length(tmp_path: Path) -> None:
    first, second = numbers(tmp_path, (said(1000), 2048), (said(1000, "x" * 6000), 3000))
    assert second[:2] == first[:2]
    assert first[0] != second[-1]


def test_other_tools_are_another_beginning_and_no_number_says_what_a_text_is(tmp_path: Path) -> None:
    first, second = numbers(tmp_path, (said(1000), 2048), (said(1000, tools=[{"name": "read"}]), 2060))
    assert not {*first} & {*second}
    # in another recording the same text has whichever number comes next
    assert numbers(tmp_path / "2", (said(500), 1000), (said(500, tools=[1]), 1000)) == [[0, 1], [2, 3]]


def test_a_picture_counts_as_its_tokens_and_not_as_its_characters(tmp_path: Path) -> None:
    url = "data:image/png;base64," + "iVBO" * 100_000
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    body = said(1000)
    first, second = numbers(tmp_path, (body, 2048), ({**body, "messages": [*body["messages"], picture]}, 2348))
    assert second[:3] == first[:3]


@pytest.mark.parametrize("limit", ["MOST_RECORDED", "MOST_STEPS"])
def test_a_recording_ends_at_its_limit_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    monkeypatch.setattr(shapes, limit, 200)
    for _ in range(2):
        one = shapes.Shapes(tmp_path)
        for count in range(20):
            one.record(count, said(2000, tools=count), 4000, 8)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 0 < size <= (200 if limit == "MOST_RECORDED" else 2000)
    assert capsys.readouterr().err.count("is full; no further requests are recorded") == 2


def test_a_disk_that_cannot_be_written_ends_the_recording_and_no_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shapes").write_text("a file")
    door = answering(tmp_path, RECORD_SHAPES="on")
    assert [ask(door, stream_of())[0] for _ in range(2)] == [200, 200]
    assert capsys.readouterr().err.count("cannot be written") == 1
