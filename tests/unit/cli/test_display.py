"""The progress of a start as lines, and as JSON."""

import json
import time

import pytest

from dflash_deploy.cli.display import QUIET, Terminal
from dflash_deploy.cli.options import size_of, sizes_of, some
from dflash_deploy.operations.reporter import start_shown
from dflash_deploy.startup.progress import StartProgress
from tests.support.schemas import problems

SECRET = "key-of-the-test-0123456789"


def progress(phase: str, elapsed: float, *, line: str = "", done: int = 0, total: int = 0) -> StartProgress:
    return StartProgress(phase, elapsed, line, done, total, usual=62.0, usual_in_phase=40.0)


STEPS = [
    progress("creating", 0),
    progress("loading the target", 2, line=f"--api-key {SECRET}"),
    progress("loading the target", 3, done=1, total=7),
    progress("loading the target", 3, done=1, total=7),
    progress("loading the target", 4, done=2, total=7),
    progress("warming up", 5),
]


def show(*, json_stream: bool) -> None:
    with start_shown(Terminal(json_stream=json_stream), lambda text: text.replace(SECRET, "***")) as shown:
        for step in STEPS:
            shown(step)


def test_sizes_and_numbers_are_rounded_as_people_read_them() -> None:
    assert [size_of(size) for size in (9_600_000, 99_999_999, 100_000_000, 19_040_000_000)] == [
        "10 MB",
        "100 MB",
        "0.1 GB",
        "19.0 GB",
    ]
    pairs = ((5_400_000, 1_090_000), (16_700_000_000, 90_000_000), (20_000_000_000, 3_460_000_000))
    assert [sizes_of(*sizes) for sizes in pairs] == ["5 + 1 MB", "16.7 GB + 90 MB", "20.0 + 3.5 GB"]
    assert [some(number) for number in (2.84, 99.9, 5694.6)] == ["2.8", "99.9", "5,695"]


def test_a_pipe_gets_a_line_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    show(json_stream=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "    0 s  creating (40 s last time)",
        "    2 s  loading the target (40 s last time): --api-key ***",
        "    5 s  warming up (40 s last time)",
    ]


def test_work_without_a_line_says_again_and_again_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Terminal()
    with shown.working("measuring", quiet=0.1):
        time.sleep(1.0)
        assert 4 <= capsys.readouterr().err.splitlines().count("        measuring: 0 s") <= 10
        with shown.starting():
            capsys.readouterr()
            time.sleep(0.2)
            assert capsys.readouterr().err == ""
        time.sleep(0.2)
        shown.note("a line")
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "a line"
    assert set(said[:-1]) <= {"        measuring: 0 s"}


def test_a_silence_is_three_seconds_at_most() -> None:
    # it is looked at five times in QUIET
    assert QUIET * (1 + 1 / 5) <= 3


def test_a_program_gets_each_step_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    show(json_stream=True)
    out, err = capsys.readouterr()
    assert err == ""
    assert SECRET not in out
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["event"] for event in events} == {"progress"}
    assert [said for event in events for said in problems(event)] == []
    assert [(event["phase"], event["done"], event["total"]) for event in events] == [
        ("creating", 0, 0),
        ("loading the target", 0, 0),
        ("loading the target", 1, 7),
        ("loading the target", 2, 7),
        ("warming up", 0, 0),
    ]
    assert (events[2]["elapsed"], events[2]["usual"], events[2]["usual_in_phase"]) == (3, 62.0, 40.0)
