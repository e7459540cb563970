"""The judge finds what it is there for: each class of finding, from a reader that has that defect."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.errors import BadInput, DeployError
from dflash_deploy.intake.parse import parse_json
from tests.fuzz import judge as judging
from tests.fuzz import worker
from tests.fuzz.commands import Case, problems
from tests.fuzz.hostile import RAW, SECRET, damaged, json_documents
from tests.fuzz.judge import Count, Lost, judge
from tests.fuzz.kind import Kind
from tests.fuzz.of_deployment import SAMPLES
from tests.fuzz.places import is_kept
from tests.fuzz.report import Totals


def raises(error: BaseException) -> Callable[[bytes], object]:
    def read(content: bytes) -> NoReturn:
        raise error

    return read


def found(read: Callable[[bytes], object]) -> list[str]:
    count = Count("x")
    judge(count, b"content", read)
    assert all(finding.content == b"content" for finding in count.findings)
    return [finding.problem for finding in count.findings]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (KeyError("x"), "unexpected"),
        (RecursionError(), "unexpected"),
        (MemoryError(), "unexpected"),
        (DeployError("a defect", hint="report it"), "unexpected"),
        (BadInput("x", hint="two\nlines"), "message"),
        (BadInput("x" * 3000, hint="x"), "message"),
        (BadInput("x", hint=""), "message"),
        (EndpointError(f"the key {SECRET} is wrong"), "secret"),
        (Lost("x"), "lost"),
    ],
)
def test_each_class_is_found(error: Exception, problem: str) -> None:
    assert found(raises(error)) == [problem]


def test_a_value_and_an_error_of_the_project_are_no_finding() -> None:
    assert found(len) == []
    assert found(raises(BadInput("`x` is not valid", hint="write y"))) == []


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PATIENCE", 0.1)
    assert found(lambda content: time.sleep(60)) == ["hang"]


def test_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST_MEMORY", 1)
    kept = []
    assert found(lambda content: kept.append(b"x" * 300_000_000)) == ["memory"]


def test_an_input_counts_once() -> None:
    count = Count("x")
    for content in (b"a", b"b", b"a"):
        judge(count, content, raises(BadInput("x", hint="y")))
    assert count.row() | {"slowest": 0} == {"kind": "x", "inputs": 2, "refused": 2, "slowest": 0} | dict.fromkeys(
        judging.CLASSES, 0
    )


def test_a_file_that_is_gone_or_changed_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    for kept in (file, tmp_path / "run.json.damaged"):
        kept.write_bytes(b"content")
        is_kept(file, b"content")
    file.write_bytes(b"other")
    with pytest.raises(Lost):
        is_kept(file, b"content")


@pytest.mark.parametrize(
    ("code", "out", "err", "problem"),
    [
        (1, "", "error: unexpected: KeyError: 'x'", "unexpected"),
        (99, "", "", "unexpected"),
        (0, "unexpected: x", "", "unexpected"),
        (0, f"key {SECRET}", "", "secret"),
        (2, "", "error: \x1b[31m", "message"),
        (2, "", "x" * 6000, "message"),
    ],
)
def test_the_end_of_a_command_is_judged(tmp_path: Path, code: int, out: str, err: str, problem: str) -> None:
    (tmp_path / ".env").write_bytes(b"content")
    case = Case(".env", b"content", ("status",))
    assert [name for name, _ in problems(case, tmp_path, code, out, err, None)] == [problem]
    assert list(problems(case, tmp_path, 2, "", "error: x", None)) == []


def test_a_command_that_loses_env_is_found(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"other")
    case = Case(".env", b"content", ("down",))
    assert [name for name, _ in problems(case, tmp_path, 0, "", "", None)] == ["lost"]


def test_the_corpus_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pull-record").mkdir()
    (tmp_path / "pull-record" / "found").write_bytes(b"found before")
    monkeypatch.setattr(worker, "CORPUS", tmp_path)
    read = list[bytes]()
    kind = Kind(".pull record", [b"sample"], json_documents({}), read.append)
    worker.replay(kind, Count(kind.name))
    assert read == [b"sample", b"found before"]


def test_the_same_number_makes_the_same_inputs() -> None:
    runs = []
    for _ in range(2):
        read = list[bytes]()
        worker.generate(Kind("x", (), damaged(SAMPLES), read.append), Count("x"), 7, 50)
        runs.append(read)
    assert runs[0] == runs[1]
    assert len(runs[0]) > 30


def test_the_texts_in_place_of_values_are_json_and_none() -> None:
    valid = 0
    for text in RAW:
        try:
            parse_json(text)
            valid += 1
        except ValueError:
            continue
    assert 0 < valid < len(RAW)


def test_the_table_adds_up() -> None:
    row = Count("x").row() | {"inputs": 2, "peak": 7}
    totals = Totals()
    totals.add([json.dumps(row), json.dumps(row | {"kind": "y"}), json.dumps(row), "no document"])
    assert totals.inputs == 6
    assert totals.table().splitlines()[-1].startswith("| all | 6 | 0 |")
