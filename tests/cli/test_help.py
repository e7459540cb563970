"""What the command line does before a command runs: help, version and completion, without importing any command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.cli.app import COMMANDS
from tests.support.cli import dflash

PROGRAM = "import sys; sys.argv[0] = 'dflash-deploy'; from dflash_deploy.cli.app import main; main()"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_neither_a_command_nor_rich_is_imported(option: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "dflash_deploy", option]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dflash_deploy.cli.app" in imported
    ours = {"dflash_deploy.cli", "dflash_deploy.cli.app", "dflash_deploy.cli.streams", "dflash_deploy.errors"}
    assert {name for name in imported if name.startswith("dflash_deploy.")} == ours
    assert not {name for name in imported if name.split(".")[0] in {"rich", "pydantic", "httpx", "docker", "yaml"}}


def test_help_lists_the_commands_in_their_order(tmp_path: Path) -> None:
    shown = dflash("--help", at=tmp_path).succeeded().out.partition("Commands:")[2]
    assert [line.split()[0] for line in shown.splitlines() if line.strip()] == list(COMMANDS)


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    environment = {
        **os.environ,
        "_DFLASH_DEPLOY_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("dflash-deploy", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_shell_completes_commands_and_their_options() -> None:
    assert completed("re") == ["render", "restart"]
    assert completed("keys", "ro") == ["rotate"]
    assert "--json-stream" in completed("up", "--j")


def test_a_command_that_does_not_exist_is_a_usage_error_with_a_suggestion(tmp_path: Path) -> None:
    ran = dflash("statsu", at=tmp_path)
    assert ran.code == 2
    assert "status" in ran.err
