"""A damaged state file is set aside and reported in one line, whatever it is."""

import json
import os
from pathlib import Path

import pytest

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.documents import (
    EngineEnd,
    LastStart,
    LockDocument,
    RunState,
    parse_document,
    read_state,
)
from dflash_deploy.intake.parse import Invalid

WHOLE = {"pid": 12, "started": 34, "config": "c", "address": "127.0.0.1:8000"}

DAMAGED = {
    "empty": b"",
    "zeros, as after a power cut": b"\0" * 200,
    "half": json.dumps(WHOLE).encode()[:20],
    "not UTF-8": b'{"pid": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "deep in a key": json.dumps(WHOLE).encode()[:-1] + b', "x": ' + b"[" * 100_000,
    "too many digits": b'{"pid": ' + b"9" * 5000 + b"}",
    "50 MB": b" " * 50_000_000,
    "a key is missing": json.dumps({"pid": 12}).encode(),
    "another type": json.dumps(WHOLE | {"pid": "12"}).encode(),
    "a boolean": json.dumps(WHOLE | {"pid": True}).encode(),
    "a PID that means all processes": json.dumps(WHOLE | {"pid": -1}).encode(),
    "a long text": json.dumps(WHOLE | {"address": "x" * 5000}).encode(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_renamed_and_reported_in_one_line(tmp_path: Path, name: str) -> None:
    file, said = tmp_path / "run.json", list[str]()
    file.write_bytes(DAMAGED[name])
    assert read_state(file, RunState, report=said.append) is None
    assert not file.exists()
    assert (tmp_path / "run.json.damaged").read_bytes() == DAMAGED[name]
    assert len(said) == 1
    assert "run.json" in said[0]
    assert said[0].endswith("moved to run.json.damaged")
    assert "\n" not in said[0]
    assert len(said[0]) < 400


@pytest.mark.parametrize("kind", ["directory", "FIFO", "link to itself", "link elsewhere"])
def test_what_is_not_a_file_is_renamed_without_being_opened(tmp_path: Path, kind: str) -> None:
    file, said = tmp_path / "run.json", list[str]()
    match kind:
        case "directory":
            file.mkdir()
        case "FIFO":
            os.mkfifo(file)
        case "link to itself":
            file.symlink_to("run.json")
        case _:
            (tmp_path / "elsewhere").write_text(json.dumps(WHOLE))
            file.symlink_to("elsewhere")
    assert read_state(file, RunState, report=said.append) is None
    assert not file.is_symlink()
    assert not file.exists()
    assert len(said) == 1


def test_a_file_that_cannot_be_renamed_is_reported_and_ignored(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "run.json.damaged").mkdir()
    (tmp_path / "run.json").write_text("")
    assert read_state(tmp_path / "run.json", RunState, report=said.append) is None
    assert said[0].endswith("ignored")


def test_a_file_that_this_user_may_not_read_is_refused_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(WHOLE))

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(FileRefused):
        read_state(tmp_path / "run.json", RunState)
    assert (tmp_path / "run.json").exists()


def test_a_whole_file_is_read_and_a_missing_one_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "run.json", RunState) is None
    (tmp_path / "run.json").write_text(json.dumps(WHOLE | {"of a newer release": 1}))
    assert read_state(tmp_path / "run.json", RunState) == RunState(
        pid=12, started=34, config="c", address="127.0.0.1:8000"
    )


def test_an_end_without_asked_is_of_an_older_release() -> None:
    assert parse_document('{"exit_code": -9}', EngineEnd).asked


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (EngineEnd, '{"exit_code": 1e9}', "exit_code"),
        (LockDocument, '{"schema": 2, "models": {}}', "schema"),
        (LockDocument, '{"schema": 1, "models": {"target": {}}}', "models.target.repo"),
        (
            LockDocument,
            '{"schema": 1, "models": {"target": {"repo": "a", "commit": "b", "files": [7]}}}',
            "models.target.files.0",
        ),
    ],
)
def test_what_does_not_match_is_named_by_its_key(kind: type[EngineEnd], text: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"is damaged: {says}"):
        parse_document(text, kind)


def test_a_key_adds_no_line_to_the_report(tmp_path: Path) -> None:
    file, said = tmp_path / "last-start.json", list[str]()
    file.write_text(json.dumps({f"\n\x1b[31merror: {'x' * 4000}": "no number"}))
    assert read_state(file, LastStart, report=said.append) is None
    assert all(char.isprintable() for line in said for char in line)
    assert len(said) == 1
    assert len(said[0]) < 500
