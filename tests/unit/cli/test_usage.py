"""Wrong arguments and wrong directories: the error names the value, and what to type instead."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.app import app
from dflash_deploy.deployment.directory import CREATE, Deployment
from dflash_deploy.errors import ExitCode, NoDeployment, UnknownPair


def said(*words: str) -> str:
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == ExitCode.USAGE
    return ran.stderr


@pytest.mark.parametrize("group", ["keys", "monitor", "fleet", "image", "models convert"])
def test_a_group_without_a_command_prints_its_help(group: str) -> None:
    shown = CliRunner().invoke(app, [*group.split(), "--help"]).stdout
    assert len(shown.splitlines()) > 8
    assert said(*group.split()).strip() == shown.strip()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("init", "--port", "70000"), "'--port': `70000` is more than 65535"),
        (("init", "--port", "http"), "'--port': `http` is not a whole number"),
        (("up", "--patience", "0"), "'--patience': `0` is less than 1"),
        (("up", "--patience", "long"), "'--patience': `long` is not a number"),
        (("init", "--runtime", "docker"), "'--runtime': 'docker' is not one of 'compose', 'native'"),
    ],
)
def test_a_value_that_an_option_refuses_is_named(words: tuple[str, ...], error: str) -> None:
    assert error in said(*words)


@pytest.mark.parametrize(
    ("words", "error", "command"),
    [
        (("up", "--frobnicate"), "no such option: --frobnicate", "dflash-deploy up"),
        (("keys", "show", "--dir"), "option '--dir' requires an argument", "dflash-deploy"),
        (("frobnicate",), "no such command 'frobnicate'", "dflash-deploy"),
        (("models", "show"), "missing argument 'name'", "dflash-deploy models show"),
    ],
)
def test_wrong_arguments_are_an_error_in_two_lines(words: tuple[str, ...], error: str, command: str) -> None:
    ran = CliRunner().invoke(app, words, prog_name="dflash-deploy")
    assert ran.exit_code == ExitCode.USAGE
    first, second = ran.stderr.splitlines()
    assert first.startswith(f"error: {error}")
    assert second == f"  hint: `{command} -h` shows what it accepts"


def test_a_value_of_any_length_and_bytes_is_cut_and_escaped() -> None:
    error = said("init", "--port", "\x1b[31m" + "9x" * 5000)
    assert "\x1b" not in error
    assert "is not a whole number" not in error[:100]
    assert len(error) < 1000


def deployed(place: Path) -> Path:
    (place / ".dflash").mkdir(parents=True)
    (place / ".env").write_text("")
    return place


def hint_in(place: Path) -> str:
    with pytest.raises(NoDeployment) as refused:
        Deployment.existing(place)
    return refused.value.hint


def test_a_deployment_near_the_wrong_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = deployed(tmp_path / "demo")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("A=1\n")
    monkeypatch.chdir(tmp_path)
    assert hint_in(Path()) == f"name one with `--dir demo`, or {CREATE}"
    assert "name one with `--dir demo`," in hint_in(demo / ".dflash")
    deployed(tmp_path / "two words")
    assert "`--dir demo` or `--dir 'two words'`," in hint_in(tmp_path)
    monkeypatch.chdir(demo)
    assert f"`--dir .` or `--dir '{tmp_path}/two words'`," in hint_in(tmp_path)


def test_far_from_a_deployment_the_hint_is_to_create_one(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        assert hint_in(place) == CREATE


def test_a_model_that_is_not_known_names_those_that_begin_so() -> None:
    for asked, example in (("qwen3.8", "such as qwen3.8-27b-bf16, "), ("llamma", "")):
        with pytest.raises(UnknownPair) as refused:
            load_catalog().pair(asked)
        assert example in refused.value.hint
        assert "`dflash-deploy models list --all` prints all" in refused.value.hint
        assert len(refused.value.hint) < 250
