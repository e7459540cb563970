"""Exit code 1 means a defect of dflash-deploy: it is shown with lines for an issue, without secrets and home paths."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy import __version__
from dflash_deploy.cli import report
from dflash_deploy.cli.defect import ISSUES, LONGEST_MESSAGE
from dflash_deploy.cli.shown import About
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise
from tests.support.schemas import checked_output

# The command with a part that raises; it gets the API key on its standard input.
PLANTED = """
import sys
from dflash_deploy.cli import app
from dflash_deploy.deployment.directory import Deployment

def inner(key):
    {raising}

def fall(*_, **__):
    inner(KEY)

KEY = sys.stdin.read()
import dflash_deploy.planning
dflash_deploy.planning.read_facts = fall
app.main()
"""

RAISING = 'raise KeyError(f"/home/alice/box: key {key} hf_abcdefghijklmnopqrstuvwx " + 5000 * "x")'


def planted(raising: str, *arguments: str, at: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-c", PLANTED.format(raising=raising), *arguments],
        cwd=at,
        env={**os.environ, **environment},
        input=Deployment(at).key.reveal(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    checked_output(arguments, done.returncode, done.stdout)
    return done


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("box")
    initialise("--profile", "cpu", "--runtime", "native", at=place)
    return place


def test_a_defect_is_shown_with_lines_for_an_issue(box: Path) -> None:
    done = planted(RAISING, "plan", "--dir", str(box), "--max-model-len=4096", at=box)
    assert done.returncode == ExitCode.UNEXPECTED
    said, _, block = done.stderr.partition("\n\n")
    assert ISSUES in said
    lines = block.splitlines()
    assert lines[0].startswith(f"dflash-deploy {__version__}, Python {sys.version.split()[0]}, Linux ")
    assert lines[1] == "command  dflash-deploy plan --dir … --max-model-len=…"
    assert lines[2].startswith("error    KeyError: '~/box: key [redacted] [redacted]")
    assert "characters)" in lines[2]
    assert len(lines[2]) < LONGEST_MESSAGE + 60
    frames = [line for line in lines if line.startswith("at ")]
    assert frames == lines[3:]
    assert any(re.fullmatch(r"at       dflash_deploy/planning\.py:\d+ in make_plan", line) for line in frames)
    assert re.fullmatch(r"at       <string>:\d+ in inner", frames[-1])
    assert str(box) not in block
    assert str(Path.home()) not in block
    assert Deployment(box).key.reveal() not in done.stderr


def test_the_document_has_the_same_lines(box: Path) -> None:
    done = planted(RAISING, "plan", "--json", at=box)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (ExitCode.UNEXPECTED, ExitCode.UNEXPECTED)
    assert done.stderr.endswith(f"\n\n{error['report']}\n")
    assert error["report"].startswith("dflash-deploy ")
    assert Deployment(box).key.reveal() not in done.stdout
    other = dflash("profiles", "show", "none", "--json", at=box).document["error"]
    assert set(other) == {"code", "message", "hint"}


def test_what_an_exception_came_after_is_named(box: Path) -> None:
    done = planted("raise TypeError('outer') from ValueError(f'inner {key}')", "plan", at=box)
    assert "error    TypeError: outer\nafter    ValueError: inner [redacted]\n" in done.stderr


@pytest.mark.parametrize(
    ("raising", "code", "said"),
    [
        ("fall()", ExitCode.USAGE, "nested too deeply"),
        ("raise MemoryError", ExitCode.PREFLIGHT, "not enough memory"),
        ("raise BrokenPipeError(32, 'Broken pipe')", ExitCode.PREFLIGHT, "Broken pipe"),
        ("raise OSError(28, 'No space left on device', 'file')", ExitCode.PREFLIGHT, "file: No space left"),
        ("raise KeyboardInterrupt", ExitCode.INTERRUPTED, "interrupted"),
        ("import typer; raise typer.Abort", ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_what_is_no_defect_is_not_shown_as_one(box: Path, raising: str, code: ExitCode, said: str) -> None:
    done = planted(raising, "plan", at=box)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("starts_over", "hint"), [(True, "starts over"), (False, "to continue")])
def test_ctrl_c_says_whether_the_same_command_continues(starts_over: bool, hint: str) -> None:
    assert hint in report.interrupted(About("up", starts_over=starts_over)).hint


@pytest.mark.parametrize(("where", "code"), [("raise RuntimeError(KEY)", 1), ("raise KeyboardInterrupt", 130)])
def test_outside_of_a_command_there_is_no_traceback_either(box: Path, where: str, code: int) -> None:
    script = f"""
import sys
from dflash_deploy.cli import app
KEY = sys.stdin.read()
def load(name):
    {where}
app.load = load
app.main()
"""
    key = Deployment(box).key.reveal()
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", "--dir", str(box)],
        cwd=box.parent,
        input=key,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr, key in done.stderr) == (code, False, False)
    assert ("command  dflash-deploy plan --dir …" in done.stderr) == (code == 1)


def test_a_secret_at_the_cut_of_a_long_message_is_not_shown_in_part(box: Path) -> None:
    raising = "from dflash_deploy.errors import BadInput; raise BadInput('x' * 1490 + key + 'y' * 600, hint='')"
    done = planted(raising, "plan", at=box)
    assert done.returncode == ExitCode.USAGE
    key = Deployment(box).key.reveal()
    assert not [part for part in (key[:6], key[6:12], key[-6:]) if part in done.stderr]


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--bad\x1b[31m"),
        ("\x1b]0;x\x07",),
        ("plan", "word\u202e\n" * 3000),
        ("plan", "--max-model-len", "9" * 5000),
        ("keys", "y" * 50_000),
        ("init", "--goal", "\x1b[2J" * 500),
    ],
)
def test_an_error_about_the_arguments_is_escaped_and_cut(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = dflash(*arguments, at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert not {"\x1b", "\u202e", "\x07"} & set(ran.out + ran.err)
    assert len(ran.err) < 4000
