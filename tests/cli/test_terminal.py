"""On a real terminal, and where there is none."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pexpect
import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*args: str, at: Path, environment: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Output and exit code of the command on a terminal of 100 columns."""
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "TERM"}}
    output, code = pexpect.run(
        f"{sys.executable} -m dflash_deploy {' '.join(args)}",
        cwd=str(at),
        env={**variables, "TERM": "xterm-256color", "COLUMNS": "100", **(environment or {})},
        withexitstatus=True,
        encoding="utf-8",
    )
    return output, code


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", at=tmp_path)
    return tmp_path


def test_a_terminal_gets_colour(deployment: Path) -> None:
    output, code = on_terminal("plan", at=deployment)
    assert code == ExitCode.DONE
    assert COLOUR.search(output)


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_unless_it_does_not_want_any(deployment: Path, plain: Mapping[str, str]) -> None:
    output, _ = on_terminal("plan", at=deployment, environment=plain)
    assert "\x1b[3" not in output


def test_a_setting_stands_whole_on_its_line(deployment: Path) -> None:
    output, _ = on_terminal("plan", at=deployment, environment={"NO_COLOR": "1", "COLUMNS": "40"})
    path = next(line for line in (deployment / ".env").read_text().splitlines() if line.startswith("MODEL_HOST_PATH="))
    assert path in COLOUR.sub("", output)


@pytest.mark.parametrize("command", ["models list", "profiles list", "connect"])
def test_a_table_fits_80_columns_and_breaks_no_name(deployment: Path, command: str) -> None:
    narrow, code = on_terminal(*command.split(), at=deployment, environment={"NO_COLOR": "1", "COLUMNS": "80"})
    piped = dflash(*command.split(), at=deployment).out
    assert code == ExitCode.DONE
    lines = [line.rstrip() for line in COLOUR.sub("", narrow).splitlines()]
    # the lines around a table are those of a pipe, and may be longer
    assert max((len(line) for line in lines if line not in piped.splitlines()), default=0) <= 80
    for name in re.findall(r"(?m)^[\w.-]*\d[\w.-]*(?= )|vllm-cpu-[\d.]+|llamacpp-[\w-]+", piped):
        assert name in narrow


def test_nothing_is_asked_for(deployment: Path) -> None:
    # a prompt would wait for ever in a script
    ran = dflash("init", at=deployment)
    assert ran.code is ExitCode.USAGE
