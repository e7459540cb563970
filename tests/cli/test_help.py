"""What the command line does before a command runs: help, version and completion; and what each command imports."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dflash_deploy.cli.app import COMMANDS
from tests.support.cli import dflash, initialise

PROGRAM = "import sys; sys.argv[0] = 'dflash-deploy'; from dflash_deploy.cli.app import main; main()"


FEATURES = {f"dflash_deploy.features.{name}" for name in ("export", "fleet", "monitoring", "page")}
REGISTERED = {"dflash_deploy.registry", "dflash_deploy.features", *FEATURES}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_neither_a_command_nor_rich_is_imported(option: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "dflash_deploy", option]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dflash_deploy.cli.app" in imported
    ours = {f"dflash_deploy.{name}" for name in ("cli", "cli.app", "cli.shared", "cli.streams", "errors", "registry")}
    # features are imported by name, which is not listed; all that they import is
    assert {name for name in imported if name.startswith("dflash_deploy.")} == ours
    assert not {name for name in imported if name.split(".")[0] in {"rich", "pydantic", "httpx", "docker", "yaml"}}


# What the options of a command may import, beside modules of `cli` and `serve`: none of the work.
DECLARATIONS = REGISTERED | {
    "dflash_deploy.errors",
    "dflash_deploy.gone",
    "dflash_deploy.operations",
    "dflash_deploy.operations.reporter",
    "dflash_deploy.redact",
    "dflash_deploy.startup",
}

TERMINAL = {
    "dflash_deploy.cli.report",
    "dflash_deploy.cli.display",
}

# A process that has imported what every call imports, and forks for each call, which takes a tenth of a start.
FORKED = """
import os, sys
from dflash_deploy.cli.app import main

modules = os.dup(1)
os.dup2(2, 1)
for arguments in {!r}:
    if os.fork() == 0:
        sys.argv[:] = ["dflash-deploy", *arguments]
        try:
            main()
        finally:
            os.write(modules, (" ".join(arguments) + "|" + " ".join(sys.modules) + chr(10)).encode())
            os._exit(0)
    os.wait()
"""


def imported_by(calls: Iterable[str], at: Path) -> dict[str, set[str]]:
    """The modules that each call of the program imports until it ends."""
    program = FORKED.format([call.split() for call in calls])
    done = subprocess.run([sys.executable, "-c", program], cwd=at, capture_output=True, text=True, check=True)
    return {
        call: set(modules.split()) for call, _, modules in (line.partition("|") for line in done.stdout.splitlines())
    }


HELPED = (*COMMANDS, "keys rotate", "models convert gguf", "image build")


@pytest.fixture(scope="module")
def imported_for_help(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that `COMMAND --help` imports, by command."""
    found = imported_by((f"{command} --help" for command in HELPED), tmp_path_factory.mktemp("help"))
    return {call.removesuffix(" --help"): modules for call, modules in found.items()}


@pytest.mark.parametrize("command", HELPED)
def test_the_help_of_a_command_imports_its_options_and_none_of_its_work(
    command: str, imported_for_help: dict[str, set[str]]
) -> None:
    imported = imported_for_help[command]
    assert COMMANDS[command.split(maxsplit=1)[0]][0] in imported
    ours = {name for name in imported if name.startswith("dflash_deploy.")}
    declared = DECLARATIONS | {f"{name}.commands" for name in FEATURES}
    assert {name for name in ours if name.split(".")[1] not in {"cli", "serve"}} <= declared
    assert not ours & TERMINAL
    assert not {
        name for name in imported if name in {"rich", "httpx", "docker", "yaml", "asyncio", "prometheus_client"}
    }


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment whose engine does not run."""
    place = tmp_path_factory.mktemp("deployment")
    dflash("init", "--profile", "cpu", "--runtime", "native", at=place).succeeded()
    return place


HEAVY = {
    "asyncio",
    "aiohttp",
    "docker",
    "httpx",
    "huggingface_hub",
    "nicegui",
    "packaging.specifiers",
    "prometheus_client",
}


NEEDED: dict[str, set[str]] = {
    "status": {"httpx"},
    "connect opencode": {"httpx"},
    "doctor": {"httpx"},
    "plan": set(),
    "render": set(),
    "logs": set(),
    "down": set(),
    "keys show": set(),
    "profiles list": set(),
    "models list": set(),
}


@pytest.fixture(scope="module")
def imported_for_work(deployment: Path) -> dict[str, set[str]]:
    """The modules that these commands import, by call."""
    return imported_by(NEEDED, deployment)


@pytest.mark.parametrize(("call", "needed"), NEEDED.items())
def test_a_command_imports_only_what_it_needs(
    call: str, needed: set[str], imported_for_work: dict[str, set[str]]
) -> None:
    imported = imported_for_work[call]
    assert "dflash_deploy.cli.report" in imported
    assert imported & HEAVY <= needed
    assert (
        not imported & {"dflash_deploy.bench.load", "dflash_deploy.tuning", "dflash_deploy.catalog.failures"} - needed
    )


def test_help_lists_the_commands_in_their_order(tmp_path: Path) -> None:
    shown = dflash("--help", at=tmp_path).succeeded().out.partition("Start:")[2]
    lines = [line.split() for line in shown.splitlines() if line.startswith("  ")]
    assert [words[0] for words in lines] == list(COMMANDS)
    assert [line for line in shown.splitlines() if line and line[0] != " "] == ["Use:", "Measure:", "Operate:", "More:"]


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
    assert completed("re") == ["restart", "render"]
    assert completed("keys", "ro") == ["rotate"]
    assert "--json-stream" in completed("up", "--j")


def test_a_command_that_does_not_exist_is_a_usage_error_with_a_suggestion(tmp_path: Path) -> None:
    ran = dflash("statsu", at=tmp_path)
    assert ran.code == 2
    assert "status" in ran.err


def test_the_shell_completes_names_of_the_catalog() -> None:
    assert completed("init", "--profile", "rtx-3090") == ["rtx-3090", "rtx-3090-x2", "rtx-3090-x4"]
    assert "qwen3.6-27b-fp8" in completed("plan", "--model", "qwen3.6-27b")
    assert completed("profiles", "show", "dgx") == ["dgx-spark", "dgx-spark-x2"]
    assert "llamacpp" in completed("plan", "--engine", "llama")


def test_the_shell_completes_checks_after_a_comma() -> None:
    assert completed("test", "--only", "stre") == ["stream"]
    assert completed("test", "--only", "stream,vis") == ["stream,vision"]
    assert completed("test", "--only", "stream,stre") == []


def test_the_shell_completes_clients_and_deployments(tmp_path: Path) -> None:
    initialise("--profile", "cpu", at=tmp_path / "vision")
    (tmp_path / "video").mkdir()
    (tmp_path / "notes.txt").touch()
    assert completed("connect", "open-") == ["open-webui"]
    assert sorted(completed("status", "--dir", f"{tmp_path}/vi")) == [f"{tmp_path}/video/", f"{tmp_path}/vision"]
    assert completed("status", "--dir", f"{tmp_path}/missing/") == []


def test_a_damaged_catalog_completes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text("name: [")
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    assert completed("init", "--profile", "rtx") == []
