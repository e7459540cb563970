"""Every command that an error or a result tells to run can be pasted as it is printed.

`dflash` checks those of each command that any test runs. Here are errors of each kind, and what they name is run.
"""

import re
import sysconfig
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import checked, run_command
from tests.support.hints import commands_of, hint_problems

# What needs no engine, Docker or network, by the first word.
RUN = {"connect", "init", "keys", "list", "models", "plan", "profiles", "schema", "set"}

WITHOUT = (
    "plan --profile rtx-9090",
    "init --profile cpu --model tini",
    "down",
    "status --dir missing",
    "ask",
    "keys list",
    "schema nothing",
    "list",
)
WITHIN = (
    "init --profile cpu",
    "set",
    "set MAX_NUM_SEQS=many",
    "set DFLASH_PORT=70000",
    "set GPU_MEMORY_UTILIZATION=2",
    "set DFLASH_KEYS=1",
    "keys list",
    "keys show",
    "keys show nobody",
    "keys add alice",
    "connect --key alice",
    "connect opencoed",
    "connect",
    "image digest",
    "logs report.txt",
    "explain",
    "bench --concurrency none",
    "models use nothing",
    "list",
)


def pasted(line: str, at: Path, home: Path) -> None:
    """Run a command, and then what it names as the next one."""
    environment = {"HOME": str(home)}
    ran = dflash(*line.split(), at=at, environment=environment)
    for words in commands_of(ran.out + ran.err):
        if words[0] in RUN:
            then = dflash(*words, at=at, environment=environment)
            assert then.code is ExitCode.DONE or words[0] == "init", f"{line}: {' '.join(words)}: {then.err}"


@pytest.mark.parametrize("line", WITHOUT)
def test_without_a_deployment(line: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    pasted(line, tmp_path / "work", tmp_path)


@pytest.mark.parametrize("line", WITHIN)
def test_within_a_deployment(line: str, tmp_path: Path) -> None:
    (box := tmp_path / "box").mkdir()
    initialise("--profile", "cpu", "--runtime", "native", at=box)
    pasted(line, box, tmp_path)


def test_a_copy_that_no_path_has_is_run_as_the_hint_is_printed(tmp_path: Path) -> None:
    script = Path(sysconfig.get_path("scripts"), "dflash-deploy")
    shell = "export PATH=/usr/bin:/bin; cd"
    refused = run_command("sh", "-c", f"{shell} {tmp_path}; {script} down", variables={"HOME": str(tmp_path)})
    (told, *_) = re.findall(r"`(\S+ init)`", refused.stderr)
    assert told == f"{script} init"
    made = checked("sh", "-c", f"{shell} {tmp_path}; {told} --profile cpu", variables={"HOME": str(tmp_path)})
    assert f"next     {script} " in made


@pytest.mark.parametrize(("name", "value"), [("MAX_NUM_SEQS", "many"), ("ENFORCE_EAGER", "perhaps")])
def test_a_value_that_an_editor_wrote_is_repaired_by_the_hint(name: str, value: str, tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    edit_env(tmp_path, **{name: value})
    refused = dflash("plan", at=tmp_path)
    (words, *_) = commands_of(refused.err)
    assert words[0] == "set"
    dflash(*words, at=tmp_path).succeeded()
    dflash("plan", at=tmp_path).succeeded()


@pytest.mark.parametrize(
    "printed",
    [
        "  hint: make one: dflash-deploy keys rotate",
        "  hint: `dflash-deploy set NAME=VALUE` changes one",
        "  hint: `dflash-deploy plan --nothing`",
        "next     dflash-deploy unknown   what it does",
        "next     dflash-deploy plan   why\n         dflash-deploy up --nothing   then",
    ],
)
def test_what_cannot_be_pasted_is_found(printed: str) -> None:
    assert list(hint_problems(printed))
