"""Commands that the documents show, run in a fresh directory where they need neither engine nor network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support import documents
from tests.support.cli import initialise, invoke
from tests.support.documents import ROOT, Shown, Transcript

MAKES_A_DEPLOYMENT = frozenset({"init"})
READS_A_DEPLOYMENT = frozenset({"plan", "render", "connect", "keys show", "keys add", "keys list"})
NEEDS_NOTHING = frozenset(
    {"profiles list", "profiles show", "models list", "models show", "schema", "--version", "--help"}
)
RUN = MAKES_A_DEPLOYMENT | READS_A_DEPLOYMENT | NEEDS_NOTHING  # commands that need neither an engine nor a network
BEYOND = frozenset({"--watch", "--dir", "--ask-engine", "--write", "--launch"})  # options with which they need more
DOCUMENTS = documents.documents()


def leaf(shown: Shown) -> str:
    """The command without its options: `models list`."""
    return " ".join(shown.words[: 2 if shown.words[0] in {"profiles", "models", "keys", "image"} else 1])


def runnable(shown: Shown) -> bool:
    """Whether it is whole and needs no engine; words in capitals are for the reader to replace."""
    words = set(shown.words)
    replaced = any(re.fullmatch(r"[A-Z]+", word) for word in words)
    # --ask-engine fetches config.json and asks an engine, `connect` may write or start another program
    return leaf(shown) in RUN and not replaced and not BEYOND & words


SHOWN = {
    shown.words: shown
    for file in DOCUMENTS
    for shown in documents.commands(file)
    if runnable(shown) and not shown.mentioned
}
TRANSCRIPTS = [one for file in DOCUMENTS for one in documents.transcripts(file) if runnable(one.command)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run commands in, wide enough for every table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def output_of(shown: Shown, here: Path) -> str:
    """Standard output of a command in a fresh directory, which has a deployment if the command reads one."""
    if leaf(shown) in READS_A_DEPLOYMENT and "--profile" not in shown.words:
        initialise("--profile", "cpu", "--runtime", "native", "--port", "8000", at=here)
        names = [word for word in shown.words[2:3] if not word.startswith("-")]
        if "--key" in shown.words:
            names = [shown.words[shown.words.index("--key") + 1]]
        if (leaf(shown) == "keys show" or "--key" in shown.words) and names:
            invoke("keys", "add", *names)
    ran = invoke(*shown.words)
    assert (ran.code is ExitCode.USAGE) is shown.refused, f"{shown}\n{ran.out}\n{ran.err}"
    assert shown.refused or ran.succeeded()
    return ran.out


@pytest.mark.parametrize("shown", SHOWN.values(), ids=map(" ".join, SHOWN))
def test_a_command_of_a_document_runs(shown: Shown, here: Path) -> None:
    output_of(shown, here)


@pytest.mark.parametrize("one", TRANSCRIPTS, ids=lambda one: " ".join(one.command.words))
def test_the_output_that_a_document_shows_is_real(one: Transcript, here: Path) -> None:
    real = output_of(one.command, here).replace(str(here), "/home/you/demo")
    lacking = documents.missing(real, one.output)
    assert not lacking, f"{one.command}\nnot printed:\n" + "\n".join(lacking) + f"\n\nprinted:\n{real}"


def test_documents_have_such_commands() -> None:
    assert {leaf(shown) for shown in SHOWN.values()} >= {"init", "plan", "connect", "models list", "models show"}
    assert len(TRANSCRIPTS) >= 6


def test_a_line_that_is_not_printed_is_found() -> None:
    printed = "one 1\ntwo 2\nthree 3\n"
    assert documents.missing(printed, ("one …", "…", "three 3")) == []
    assert documents.missing(printed, ("three 3", "one 1")) == ["one 1"]
    assert documents.missing(printed, ("two",)) == ["two"]


def test_documents_are_those_of_this_checkout() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert ROOT / "docs" / "index.md" in DOCUMENTS
