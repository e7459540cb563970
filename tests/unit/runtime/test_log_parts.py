"""The log of a process in parts: read once, complete and in order, while parts are renamed under the reader."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.runtime import log as log_parts
from dflash_deploy.runtime.log import EARLIER, PartedLog, previous_start, read_page, shift


def plain(text: str) -> str:
    return text


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_parts, "PART", 200)
    return tmp_path / "engine.log"


def write(log: Path, *lines: str) -> None:
    writer = PartedLog(log)
    for line in lines:
        writer.write(f"{line}\n".encode())
    writer.close()


def numbered(first: int, last: int) -> list[str]:
    return [f"line {number:04}" for number in range(first, last)]


# a part has 13 lines or more, and a reader may miss as many as are kept
@settings(max_examples=25)
@given(st.lists(st.integers(0, 13 * EARLIER), max_size=6))
def test_a_reader_gets_each_line_once_while_parts_are_renamed(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_parts, "PART", 200)
        log = tmp_path_factory.mktemp("log") / "engine.log"
        writer, cursor, written = PartedLog(log), "", 0
        read: list[str] = []
        for burst in bursts:
            for line in numbered(written, written + burst):
                writer.write(f"{line}\n".encode())
            written += burst
            page = read_page(log, cursor, plain)
            read += page.lines
            cursor = page.cursor
        writer.close()
        assert read == numbered(0, written)
        assert len(list(log.parent.iterdir())) <= 1 + EARLIER


def test_the_log_has_a_limit_and_says_what_it_lost(log: Path) -> None:
    write(log, *numbered(0, 1000))
    assert {file.name for file in log.parent.iterdir()} == {"engine.log", *(f"engine.log.{n}" for n in (1, 2, 3))}
    assert all(file.stat().st_size <= 220 for file in log.parent.iterdir())
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in log.parent.iterdir())
    said, *lines = read_page(log, "", plain).lines
    assert said == "[0.0 MiB of the log before this were removed]"
    assert lines == numbered(1000 - len(lines), 1000)
    assert len(lines) > 3 * 10
    # nothing between two parts is lost, and a reader at the end gets no line twice
    assert read_page(log, read_page(log, "", plain).cursor, plain).lines == ()


def test_another_start_has_a_log_of_its_own(log: Path) -> None:
    write(log, *numbered(0, 30))
    cursor = read_page(log, "", plain).cursor
    shift(log)
    write(log, "the second start")
    assert read_page(log, "", plain).lines == ("the second start",)
    # who followed the first one reads the second from its beginning
    assert read_page(log, cursor, plain).lines == ("the second start",)
    assert previous_start(log) == log.with_name("engine.log.1")
    assert read_page(previous_start(log), "", plain).lines == tuple(numbered(0, 30))
    write(log, *numbered(30, 60))
    assert previous_start(log) == log.with_name("engine.log.2")
    assert read_page(log, "", plain).lines == ("the second start", *numbered(30, 60))


def test_a_start_whose_log_needs_all_parts_has_none_before_it(log: Path) -> None:
    write(log, "the first start")
    shift(log)
    write(log, *numbered(0, 1000))
    assert not previous_start(log).exists()


def test_without_room_for_another_part_the_log_goes_on(log: Path) -> None:
    # as on a disk without inodes: nothing can be created under this name
    log.with_name("engine.log.next").mkdir()
    write(log, *numbered(0, 100))
    assert read_page(log, "", plain).lines == tuple(numbered(0, 100))
    assert not log.with_name("engine.log.1").exists()


def test_a_line_like_a_mark_is_a_line(log: Path) -> None:
    mark = "[this continues the log of the same start, after 7 bytes]"
    write(log, "first", mark, *numbered(0, 30))
    assert read_page(log, "", plain).lines == ("first", mark, *numbered(0, 30))


def test_what_the_supervisor_says_itself_goes_to_the_present_part(log: Path) -> None:
    error = os.dup(2)
    try:
        writer = PartedLog(log)
        with log.open("ab") as same:
            os.dup2(same.fileno(), 2)
        for line in numbered(0, 30):
            writer.write(f"{line}\n".encode())
        os.write(2, b"a warning\n")
        writer.close()
    finally:
        os.dup2(error, 2)
        os.close(error)
        sys.stderr.flush()
    assert log.read_text().endswith("a warning\n")
    assert read_page(log, "", plain).lines == (*numbered(0, 30), "a warning")
