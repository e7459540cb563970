"""Commands of the documents that restart the engine or measure it: with the real llama.cpp, which starts in seconds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from tests.support import documents
from tests.support.cli import dflash, edit_env
from tests.support.documents import ROOT
from tests.support.ports import free_port

HOW_TO = ROOT / "docs" / "how-to"
SHOWN = {one.words for file in documents.documents() for one in documents.commands(file)}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that answers, with the file of prompts that a page shows."""
    made = tmp_path_factory.mktemp("box")
    page = documents.commands(HOW_TO / "use-llamacpp.md")
    init = next(one for one in page if one.words[0] == "init" and "native" in one.words)
    dflash(*init.words, "--port", str(free_port()), at=made).succeeded()
    prompts = re.findall(r"^ +(\{.*\})$", (HOW_TO / "tune.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(prompts) == 2
    (made / "mine.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    dflash("up", at=made).succeeded()
    yield made
    dflash("down", at=made).succeeded()


def run(box: Path, command: str) -> str:
    """Run a command that a document shows, and return what it printed."""
    assert tuple(command.split()) in SHOWN
    return dflash(*command.split(), at=box).succeeded().out


def test_measuring_the_gain(box: Path) -> None:
    run(box, "bench --prompts mine.jsonl --baseline --report bench.html")
    assert '"speedup": ' in (box / "bench.html").read_text(encoding="utf-8")
    # the engine has its drafter again
    assert json.loads(run(box, "status --json"))["data"]["state"] == "ready"
    assert "--spec-type" in (box / ".dflash/engine.log").read_text(encoding="utf-8", errors="replace")


def test_tuning_applying_and_going_back(box: Path) -> None:
    before = (box / ".env").read_text(encoding="utf-8")
    shown = "tune --prompts mine.jsonl --concurrency 1,4,16 --yes"
    assert tuple(shown.split()) in SHOWN
    # b11549 drafts rightly for two sequences only (its bugs)
    said = dflash(*shown.replace("1,4,16", "1,2").split(), at=box).succeeded().out
    # what is fastest is measured here and now; tests/unit/tuning has both decisions by name
    if "\nwritten " in said:
        assert (box / ".env.last").read_text(encoding="utf-8") == before
        run(box, "up")
        # `cp -p .env.last .env`, as the page says
        shutil.copy2(box / ".env.last", box / ".env")
        run(box, "up")
    assert (box / ".env").read_text(encoding="utf-8") == before
    assert "drafts" in run(box, "test --only drafts")


def test_going_back_to_the_last_working_settings(box: Path) -> None:
    run(box, "up")
    working = Deployment(box).env_file.read_text(encoding="utf-8")
    edit_env(box, MAX_MODEL_LEN="300")
    run(box, "rollback")
    assert (box / ".env").read_text(encoding="utf-8") == working
    assert "MAX_MODEL_LEN=300" in (box / ".env.last").read_text(encoding="utf-8")
    assert json.loads(run(box, "rollback --json"))["status"] == "ok"


def test_a_new_key_and_a_restart(box: Path) -> None:
    before = run(box, "keys show --reveal")
    run(box, "keys rotate")
    assert run(box, "keys show --reveal") != before
    run(box, "restart")
    assert "listening" in run(box, "logs")
