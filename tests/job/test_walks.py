"""The first minutes of a user, and the tutorials of three readers in their order, with the real llama.cpp."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from dflash_deploy.client.images import plain_png
from dflash_deploy.deployment.directory import Deployment
from tests.support import documents
from tests.support.cli import dflash
from tests.support.ports import free_port
from tests.support.screen import on_screen

pytestmark = pytest.mark.slow

# Each tutorial, and the profile of its reader: in the first one only the profile's name changes for another box.
READERS = {"first-box": "dgx-spark", "coding-assistant": "rtx-3090", "team": "h100"}

# Commands that need Docker or minutes, and the tests that run them.
ELSEWHERE = {
    "doctor": "tests/engine/test_documents.py",
    "test": "tests/job/test_job.py",
    "bench --baseline": "tests/parsers/test_documents.py",
    "monitor up": "tests/docker/test_monitor.py",
}

PLANS = {"init", "plan"}  # commands for the reader's own machine, which need no engine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a file of its own, and without deployments."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "red.png").write_bytes(plain_png((255, 0, 0), 224, 224))
    return tmp_path


def test_two_commands_behind_the_installation_lead_to_an_own_answer(home: Path) -> None:
    # the port of each program's examples is taken
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # by somebody else already
            other.bind(("127.0.0.1", 8000))
            other.listen()
        with on_screen("up", at=home) as screen:
            screen.shows("Start it? [Y/n]:")
            screen.types("")
            assert screen.ended() == 0
    asked = dflash("ask", "What", "colour", "is", "this", "image?", "red.png", at=home, elsewhere=True).succeeded()
    assert asked.out == "The image is red.\n"
    assert "running" in dflash("list", at=home).succeeded().out
    assert int(Deployment(home / "dflash" / "cpu").values["DFLASH_PORT"]) > 8000
    dflash("down", at=home).succeeded()


# What installs the command: the tests have it.
INSTALLS = ("git clone ", "pipx ", "python3 -m venv ", "pip ")


def pasted(page: str) -> str:
    """What a reader pastes into a shell: each block of a tutorial in order, of those with output the commands."""
    text = (documents.ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
    lines: list[str] = []
    for block in MarkdownIt("commonmark").parse(text):
        if block.type in {"code_block", "fence"}:
            shown = block.content.splitlines()
            lines += [one.removeprefix("$ ") for one in shown if block.type == "code_block" or one.startswith("$ ")]
    return "\n".join(line for line in lines if not line.startswith(INSTALLS))


# Tutorials for one box, with the options of their `init` that only the reader's machine has.
BOXES = {
    "first-box": "--profile rtx-3090( --runtime compose)?",
    "dgx-spark": "--profile dgx-spark --recipe [a-z0-9.-]+",
}


@pytest.mark.parametrize(("page", "machine"), BOXES.items())
def test_a_tutorial_works_as_it_is_pasted(page: str, machine: str, home: Path) -> None:
    mine = "--profile cpu --engine llamacpp --runtime native"
    script = re.sub(machine, mine, pasted(page)).replace(f"init {mine}", f"init {mine} --port {free_port()}")
    script = script.replace("photo.jpg", "~/red.png")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = ["bash", "-euxc", f"{script}\ndflash-deploy down"]
    ran = subprocess.run(shell, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checks passed" in ran.stdout


def typed(page: str) -> list[tuple[str, ...]]:
    """The commands of a tutorial's blocks."""
    shown = documents.commands(documents.ROOT / "docs" / "tutorials" / f"{page}.md")
    return [one.words for one in shown if not one.mentioned]


@pytest.mark.parametrize(("page", "profile"), READERS.items())
def test_a_walk_gets_where_its_reader_wants_to_be(page: str, profile: str, answering: Path, tmp_path: Path) -> None:
    commands = typed(page)
    steps = [words[0] for words in commands if words[0] in {"init", "doctor", "up", "test"}]
    assert steps[:4] == ["init", "doctor", "up", "test"]
    for words in commands:
        if words[0] in PLANS:
            before = ("", *words)
            mine = [profile if before[at] == "--profile" else word for at, word in enumerate(words)]
            dflash(*mine, at=tmp_path).succeeded()
        elif " ".join(words) not in ELSEWHERE:
            dflash(*words, at=answering).succeeded()
    assert f"DFLASH_PROFILE={profile}\n" in (tmp_path / ".env").read_text(encoding="utf-8")


def test_what_is_left_out_is_in_a_walk_and_in_another_test() -> None:
    assert {" ".join(words) for page in READERS for words in typed(page)} >= set(ELSEWHERE)
    for command, file in ELSEWHERE.items():
        assert command.split()[0] in (documents.ROOT / file).read_text(encoding="utf-8")
