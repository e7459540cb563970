"""Pages of an engine's log: complete lines, each once, and of a giant log its beginning and its end."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.runtime import log as log_file
from dflash_deploy.runtime.log import read_page, shortened

MIB = 2**20


def plain(text: str) -> str:
    return text


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=12), max_size=8))
def test_what_is_appended_is_read_once_in_complete_lines(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("log") / "engine.log"
    read: list[str] = []
    cursor = ""
    with log.open("ab", buffering=0) as file:
        for part in parts:
            file.write(part)
            page = read_page(log, cursor, plain)
            read += page.lines
            cursor = page.cursor
    whole = b"".join(parts).rpartition(b"\n")[0]
    assert len(read) == b"".join(parts).count(b"\n")
    expected = [line.rstrip("\r").rpartition("\r")[2] for line in whole.decode("utf-8", "replace").split("\n")]
    assert read == (expected if read else [])


def test_of_a_giant_log_the_beginning_and_the_end_are_read_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with log.open("wb") as file:
        file.write(b"the first line\n" + b"x" * 99 + b"\n")
        file.seek(2**40)
        file.write(b"\nthe last line\nhalf a l")
    tracemalloc.start()
    page = read_page(log, "", plain)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert page.lines[0] == "the first line"
    assert page.lines[-1] == "the last line"
    assert sum("not shown here" in line for line in page.lines) == 1
    assert most < 150 * MIB
    with log.open("ab") as file:
        file.write(b"ine\n")
    assert read_page(log, page.cursor, plain).lines == ("half a line",)


def test_no_line_is_cut_where_a_page_leaves_some_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "HEAD", 50)
    monkeypatch.setattr(log_file, "TAIL", 100)
    lines = [f"line {number:03}" for number in range(200)]
    log = tmp_path / "engine.log"
    log.write_text("\n".join(lines) + "\n")
    page = read_page(log, "", str.upper)
    left_out = page.lines.index(next(line for line in page.lines if "not shown" in line))
    assert page.lines[:left_out] == tuple(line.upper() for line in lines[:left_out])
    assert page.lines[left_out + 1 :] == tuple(line.upper() for line in lines[-len(page.lines) + left_out + 1 :])
    assert page.cursor == str(log.stat().st_size)


@pytest.mark.parametrize("cursor", ["", "7"])
def test_a_log_that_is_missing_or_was_started_again_has_no_lines(tmp_path: Path, cursor: str) -> None:
    assert read_page(tmp_path / "engine.log", cursor, plain).lines == ()
    (tmp_path / "engine.log").write_bytes(b"")
    assert read_page(tmp_path / "engine.log", cursor, plain).lines == ()


@pytest.mark.parametrize("kind", ["FIFO", "directory", "symbolic link to itself"])
def test_what_is_no_file_in_its_place_is_said_once(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "engine.log"
    match kind:
        case "FIFO":
            os.mkfifo(log)
        case "directory":
            log.mkdir()
        case _:
            log.symlink_to(log)
    page = read_page(log, "", plain)
    assert f"engine.log is a {kind}, not a file" in page.lines[0]
    assert read_page(log, page.cursor, plain).lines == ()


def test_of_a_giant_container_log_the_beginning_and_the_end_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "HEAD", 100)
    monkeypatch.setattr(log_file, "TAIL", 200)
    content = b"".join(b"2026-11-22T10:00:%05d line %d\n" % (number, number) for number in range(2000))
    for size in (1, 77, 150, 999):
        assert shortened(content[at : at + size] for at in range(0, len(content), size)) == shortened([content])
    lines, left = shortened([content]).decode().splitlines(), content.decode().splitlines()
    between = next(number for number, line in enumerate(lines) if "not shown here" in line)
    assert lines[:between] == left[:between]
    assert lines[between].startswith(lines[between - 1].partition(" ")[0] + " [")
    assert lines[between + 1 :] == left[-(len(lines) - between - 1) :]
    assert 0 < between < len(lines) - 1
    assert len(shortened([content])) < 100 + 200 + 200
    assert shortened([content[:300]]) == content[:300]
