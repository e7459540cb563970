"""Commands of the documents that need an engine: those of the tutorial in its order, and short ones of all others."""

from __future__ import annotations

import re

import pytest

from tests.support import documents
from tests.support.cli import dflash, invoke
from tests.support.documents import ROOT
from tests.support.server import Server

TUTORIAL = ROOT / "docs" / "tutorials" / "no-gpu.md"
SHOWN = {" ".join(one.command.words): one for one in documents.transcripts(TUTORIAL)}

ASK = "ask What colour is this image? --image docs/pictures/green.png"

# Commands that tests/cli and tests/job run in a directory of their own.
WITHOUT_ENGINE = {"init --profile cpu --runtime native", "plan", "connect curl", ASK}

AT_THE_END = "down"  # the command that stops the shared server
WITH_ENGINE = [name for name in SHOWN if name not in {*WITHOUT_ENGINE, AT_THE_END}]


def figures_apart(text: str) -> str:
    """The text with every number as 0 and spaces as one: times, speeds and the port differ from run to run."""
    return re.sub(r"[ ]+", " ", re.sub(r"\d+(\.\d+)?", "0", text))


def test_the_tutorial_has_the_commands_that_are_run_here() -> None:
    assert WITH_ENGINE == ["up", "test", "status"]
    assert set(SHOWN) >= {*WITHOUT_ENGINE, AT_THE_END}


@pytest.mark.parametrize("name", WITH_ENGINE)
def test_a_command_prints_what_the_tutorial_shows(drafting: Server, name: str) -> None:
    ran = dflash(*name.split(), at=drafting.directory, environment={"COLUMNS": "200"}).succeeded()
    # the shared server is up, so `up` starts nothing
    shown = [line for line in SHOWN[name].output if not line.startswith("ready after")]
    printed = figures_apart(ran.out.replace(str(drafting.directory), "/home/you/demo"))
    lacking = documents.missing(printed, tuple(figures_apart(line) for line in shown))
    assert not lacking, f"not printed: {lacking}\nprinted:\n{printed}"


HOW_TO_TUNE = ROOT / "docs" / "how-to" / "tune.md"

# Commands that neither restart the engine nor measure it for minutes.
SHORT = frozenset(
    {
        ("doctor",),
        ("logs", "--bundle", "report.tar.gz"),
        ("pull", "--offline", "--verify"),
        ("status", "--json"),
        ("test", "--only", "drafts"),
        ("tune", "--dry-run"),
        ("tune", "--prompts", "mine.jsonl", "--dry-run"),
        ("up", "--json-stream"),
    }
)


def test_the_documents_show_the_commands_that_are_run_here() -> None:
    shown = {one.words for file in documents.documents() for one in documents.commands(file)}
    assert shown >= SHORT


@pytest.mark.parametrize("words", sorted(SHORT), ids=map(" ".join, sorted(SHORT)))
def test_a_short_command_of_a_document_runs(
    drafting: Server, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(drafting.directory)
    prompts = re.findall(r"^ +(\{.*\})$", HOW_TO_TUNE.read_text(encoding="utf-8"), re.MULTILINE)
    (drafting.directory / "mine.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    invoke(*words).succeeded()
