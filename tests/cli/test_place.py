"""Which deployment a command works on: this directory's, that of DFLASH_DIR, or one below ~/dflash."""

import os
import re
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a file of its own, as every home has."""
    (tmp_path / "notes.txt").touch()
    return tmp_path


def run(home: Path, *words: str, at: Path | None = None, named: Path | None = None) -> Ran:
    environment = {"HOME": str(home), **({"DFLASH_DIR": str(named)} if named else {})}
    return dflash(*words, at=at or home, environment=environment, elsewhere=True)


def made(home: Path, *profiles: str) -> list[Path]:
    """Deployments of these profiles, made by `init` in the home; the last one was touched last."""
    for seconds, profile in enumerate(profiles):
        run(home, "init", "--profile", profile, "--runtime", "compose").succeeded()
        os.utime(home / "dflash" / profile / ".env", (10**9 + seconds,) * 2)
    return [home / "dflash" / profile for profile in profiles]


def profile_of(ran: Ran) -> object:
    return ran.document["data"]["profile"]


def test_the_next_command_finds_what_init_wrote_from_a_directory_with_files(home: Path) -> None:
    (place,) = made(home, "h100")
    ran = run(home, "plan", "--json")
    assert profile_of(ran) == "h100"
    assert ran.err.splitlines()[0] == f"deployment {place}"
    # `up` gets as far as with --dir
    assert run(home, "up").code is run(home, "up", "--dir", str(place)).code is not ExitCode.USAGE


def test_the_order_is_the_option_this_directory_the_variable_and_the_home(home: Path) -> None:
    made(home, "h100")
    option, variable, here = (home / name for name in ("option", "variable", "here"))
    for place, profile in ((option, "rtx-3090"), (variable, "b200"), (here, "cpu")):
        place.mkdir()
        run(home, "init", "--profile", profile, "--runtime", "compose", "--dir", str(place))
    assert profile_of(run(home, "plan", "--json", "--dir", str(option), at=here, named=variable)) == "rtx-3090"
    assert profile_of(run(home, "--dir", str(option), "plan", "--json", at=here, named=variable)) == "rtx-3090"
    assert profile_of(run(home, "plan", "--json", at=here, named=variable)) == "cpu"
    assert profile_of(run(home, "plan", "--json", named=variable)) == "b200"
    assert profile_of(run(home, "plan", "--json")) == "h100"


def test_of_several_the_last_touched_is_read_and_none_is_changed_without_a_question(home: Path) -> None:
    first, second = made(home, "h100", "b200")
    ran = run(home, "plan", "--json")
    assert profile_of(ran) == "b200"
    assert ran.err.startswith(f"deployment {second}\n")
    os.utime(first / ".env")
    assert profile_of(run(home, "plan", "--json")) == "h100"
    for command in (("down",), ("up",), ("set", "MAX_NUM_SEQS=2")):
        refused = run(home, *command)
        assert refused.code is ExitCode.USAGE
        assert "2 deployments below ~/dflash" in refused.err
        assert f"`dflash-deploy {command[0]} --dir h100`" in refused.err
        assert_listed(refused.err, home, "h100", "b200")


def assert_listed(text: str, home: Path, *names: str) -> None:
    """A text has a row for each deployment with its directory."""
    for name in names:
        assert re.search(rf"^{name} .* {home}/dflash/{name}$", text, re.MULTILINE)


def test_the_deployments_are_listed_and_a_name_is_enough_to_choose_one(home: Path) -> None:
    assert "no deployments yet" in run(home, "list").succeeded().out
    first, second = made(home, "h100", "b200")
    assert_listed(run(home, "list").succeeded().out, home, "h100", "b200")
    rows = run(home, "ls", "--json").succeeded().document["data"]["deployments"]
    assert [(row["name"], row["directory"]) for row in rows] == [("b200", str(second)), ("h100", str(first))]
    assert profile_of(run(home, "plan", "--json", "--dir", "h100")) == "h100"
    # what is here has the name first, and a new deployment is never written over another one
    run(home, "init", "--profile", "cpu", "--dir", "h100").succeeded()
    assert profile_of(run(home, "plan", "--json", "--dir", "h100")) == "cpu"


def test_where_there_is_none_those_elsewhere_are_listed(home: Path) -> None:
    made(home, "h100")
    for command in ("down", "status", "keys list"):
        refused = run(home, *command.split(), "--dir", "missing")
        assert refused.code is ExitCode.USAGE
        assert_listed(refused.err, home, "h100")
        assert "name one with `--dir h100`" in refused.err


def test_without_a_command_the_deployment_at_home_is_shown(home: Path) -> None:
    made(home, "h100")
    assert f"directory  {home}/dflash/h100: a deployment" in run(home).succeeded().out


def test_a_directory_that_has_lost_its_settings_is_not_passed_over(home: Path) -> None:
    made(home, "h100")
    here = home / "here"
    (here / ".dflash").mkdir(parents=True)
    ran = run(home, "status", at=here)
    assert ran.code is ExitCode.USAGE
    assert "its .env is missing" in ran.err


@pytest.mark.parametrize("name", [".env", "compose.yaml"])
def test_the_file_of_another_program_is_no_deployment_and_is_never_replaced(name: str, home: Path) -> None:
    theirs = home / "app"
    theirs.mkdir()
    (theirs / name).write_text("HF_TOKEN=hf_theirs\nFOO=bar\n")
    assert f"{theirs}: no deployment yet" in run(home, at=theirs).succeeded().out
    assert f"no deployment found in {theirs}" in run(home, "status", at=theirs).err
    for words in (["--force"], ["--dir", "."]):
        refused = run(home, "init", "--profile", "cpu", *words, at=theirs)
        assert refused.code is ExitCode.USAGE
        assert f"{theirs / name} belongs to another program\n  hint: name another directory: " in refused.err
    run(home, "init", "--profile", "cpu", "--runtime", "native", at=theirs).succeeded()
    assert [entry.name for entry in theirs.iterdir()] == [name]
    assert "FOO=bar" in (theirs / name).read_text()
    assert f"deployment {home / 'dflash' / 'cpu'}\n" in run(home, "plan", at=theirs).succeeded().err


def test_the_commands_of_a_hint_work_on_the_deployment_that_was_named(home: Path) -> None:
    made(home, "h100", "b200")
    refused = run(home, "set", "MAX_NUM_SEQS=many", "--dir", "h100", "--json").document["error"]["hint"]
    assert "`dflash-deploy set MAX_NUM_SEQS= --dir dflash/h100`" in refused
    inside = run(home, "set", "MAX_NUM_SEQS=many", at=home / "dflash" / "h100")
    assert "`dflash-deploy set MAX_NUM_SEQS=`" in inside.err
