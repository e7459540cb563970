"""The picture of `test` in the README has the checks and the lines that it prints today."""

import sys

from tests.support.server import Server
from tools.pictures.album import FOLDER, texts
from tools.pictures.terminal import record

COMMAND = "$ dflash-deploy test"


def labels(lines: list[str]) -> list[str]:
    """The first word of each line, with the second one of a check: the rest differs from run to run."""
    words = [line.split() for line in lines if line.strip()]
    return [" ".join(line[:2]) if line[0] in {"passed", "skipped"} else line[0] for line in words]


def labelled(lines: list[str]) -> list[str]:
    """The labels without lines that only continue the one before."""
    known = ("passed ", "skipped ", "endpoint", "speed", "drafts", "key", "stop")
    return [label for label in labels(lines) if label.startswith(known) or label.isdigit()]


def test_the_picture_of_test_is_what_it_prints(drafting: Server) -> None:
    shown = texts((FOLDER / "first-run.svg").read_text(encoding="utf-8"))
    printed = record(
        (sys.executable, "-m", "dflash_deploy", "test", "--dir", str(drafting.directory)),
        at=drafting.directory,
        columns=110,
    )
    pictured = labelled(shown[shown.index(COMMAND) + 1 :])
    assert labelled([line.text for line in printed]) == pictured
    assert len(pictured) > 20
