"""The logs of several processes as one."""

import pytest

from dflash_deploy.operations.logs import interleaved
from dflash_deploy.runtime.protocol import LogPage, ReadLog


def reader(*lines: str) -> ReadLog:
    def read(cursor: str) -> LogPage:
        return LogPage(lines[int(cursor or 0) :], str(len(lines)))

    return read


LOGS = {"engine": reader("a", "b", "c"), "door": reader(*"uvwxyz")}


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        (0, ()),
        (1, ("engine | c", "door | z")),
        (4, ("engine | a", "engine | b", "engine | c", "door | w", "door | x", "door | y", "door | z")),
    ],
)
def test_a_tail_has_the_last_lines_of_each_process(tail: int, shown: tuple[str, ...]) -> None:
    page = interleaved(LOGS, tail=tail)
    assert page.lines == shown
    assert interleaved(LOGS, page.cursor).lines == ()


def test_the_only_process_has_no_name() -> None:
    page = interleaved({"": reader("a", "b", "c")}, tail=2)
    assert page.lines == ("b", "c")
    assert interleaved({"": reader("a", "b", "c", "d")}, page.cursor).lines == ("d",)
