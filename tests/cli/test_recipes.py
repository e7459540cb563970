"""`--recipe`, the question of `init` on a terminal of 80 columns, and the line that names a faster recipe."""

from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.cli.test_questions import ended, profile_and_use, spawned
from tests.support.cli import dflash

SPARK = ("init", "--profile", "dgx-spark")


def test_without_a_terminal_init_takes_the_default_and_names_a_faster_recipe(tmp_path: Path) -> None:
    ran = dflash(*SPARK, "--yes", at=tmp_path).succeeded()
    assert Deployment(tmp_path).values["DFLASH_PAIR"] == "qwen3.8-27b-nvfp4-nvidia"
    lines = [line for line in ran.out.splitlines() if line.startswith("faster")]
    assert len(lines) == 1
    command, _, why = lines[0].removeprefix("faster").strip().partition("   ")
    assert command == "dflash-deploy init --force --profile dgx-spark --recipe qwen3.8-sglang"
    assert (
        why == "65 tokens/s for reasoning at concurrency 1 (hasso5703/dgx-spark-qwen38 README), now 29 to 30 tokens/s"
    )
    # it can be pasted as it is printed
    dflash(*command.split()[1:], at=tmp_path).succeeded()
    assert Deployment(tmp_path).values["DFLASH_ENGINE"] == "sglang-0.5.23"


def test_an_mtp_head_that_was_measured_to_be_faster_is_one_option(tmp_path: Path) -> None:
    out = dflash("init", "--profile", "rtx-3090", at=tmp_path).succeeded().out
    (line,) = (line for line in out.splitlines() if line.startswith("faster"))
    assert "dflash-deploy init --force --profile rtx-3090 --drafter mtp   68 tokens/s for code" in line


@pytest.mark.parametrize(
    "options",
    [
        ("--recipe", "aeon"),
        ("--model", "qwen3.8-27b-nvfp4"),
        ("--engine", "sglang"),
    ],
)
def test_a_choice_that_was_made_is_not_commented(options: tuple[str, str], tmp_path: Path) -> None:
    assert "faster " not in dflash(*SPARK, *options, at=tmp_path).succeeded().out


@pytest.mark.parametrize("profile", ["h100", "b200", "cpu"])
def test_no_recipe_is_named_if_none_is_faster(profile: str, tmp_path: Path) -> None:
    assert "faster " not in dflash("init", "--profile", profile, at=tmp_path).succeeded().out


def test_a_recipe_is_written_and_replaces_a_deployment(tmp_path: Path) -> None:
    dflash(*SPARK, at=tmp_path).succeeded()
    ran = dflash(*SPARK, "--recipe", "qwen3.8-sglang", "--force", at=tmp_path).succeeded()
    values = Deployment(tmp_path).values
    assert values["DFLASH_ENGINE"] == "sglang-0.5.23"
    assert values["DFLASH_NUM_SPEC_TOKENS"] == "15"
    assert "(reported)" in ran.out


def test_a_plan_in_a_deployment_takes_another_recipe(tmp_path: Path) -> None:
    dflash(*SPARK, at=tmp_path).succeeded()
    out = dflash("plan", "--recipe", "qwen3.8-sglang", at=tmp_path).succeeded().out
    assert "MAX_NUM_SEQS=8  (recipe qwen3.8-sglang)" in out
    assert "DFLASH_NUM_SPEC_TOKENS=15  (recipe qwen3.8-sglang)" in out
    # a value that a source has is not warned about
    assert "set 7 or less" not in out
    assert "hasso5703/dgx-spark-qwen38" in out


@pytest.mark.parametrize("command", ["init", "plan"])
def test_an_unknown_recipe_is_refused_with_what_exists(command: str, tmp_path: Path) -> None:
    ran = dflash(command, "--profile", "dgx-spark", "--recipe", "nope", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert ran.err.splitlines()[0] == "error: `nope` is no recipe of dgx-spark"
    assert "its recipes: qwen3.8-vllm, qwen3.8-sglang" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_shows_its_recipes(tmp_path: Path) -> None:
    ran = dflash("profiles", "show", "rtx-3090", at=tmp_path).succeeded()
    assert "qwen3.5-llamacpp: Qwen3.5 27B" in ran.out
    assert "the buun fork of the original recipe changes answers" in ran.out
    document = dflash("profiles", "show", "rtx-3090", "--json", at=tmp_path).succeeded().document["data"]
    assert [one["name"] for one in document["recipes"]] == ["qwen3.5-llamacpp", "qwen3.8-llamacpp", "qwen3.5-buun"]


def test_a_terminal_shows_three_recipes_within_80_columns_and_asks(tmp_path: Path) -> None:
    child = spawned(at=tmp_path / "box")
    profile_and_use(child, "dgx-spark")
    child.expect(r"Recipe \[first\]: ")
    lines = child.before.splitlines()
    assert max(map(len, lines)) <= 80
    shown = "\n".join(lines)
    assert shown.count(" tokens/s, ") == 3
    assert "29 to 30 tokens/s, safety alignment, text and images, reported" in " ".join(shown.split())
    assert "2 more: dflash-deploy profiles show dgx-spark" in shown
    child.sendline("nope")
    child.expect("`nope` is not a valid recipe")
    child.sendline("qwen3.8-sglang")
    child.expect("Directory for the weights")
    child.sendline("")
    child.expect("Port")
    child.sendline("")
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path / "box").values["DFLASH_PAIR"] == "qwen3.8-27b-nvfp4-nvfp4-drafter"
    assert "faster   " not in child.before


def test_enter_takes_the_default_recipe(tmp_path: Path) -> None:
    child = spawned(at=tmp_path / "box")
    profile_and_use(child, "rtx-3090")
    for question in ("Recipe", "Directory", "Port"):
        child.expect(question + r".*\]: ")
        child.sendline("")
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path / "box").values["DFLASH_ENGINE"] == "llamacpp-b11434"


def test_a_profile_with_no_recipes_is_asked_for_none(tmp_path: Path) -> None:
    child = spawned(at=tmp_path)
    profile_and_use(child, "cpu")
    child.expect("Port")
    assert "Recipe" not in child.before
    child.sendline("")
    assert ended(child) == ExitCode.DONE
