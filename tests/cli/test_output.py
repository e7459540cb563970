"""What the verbs print, for people and for programs."""

import re
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env, initialise


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    initialise("--profile", "dgx-spark", at=tmp_path)
    return tmp_path


def key_of(directory: Path) -> str:
    line = next(line for line in (directory / ".env").read_text().splitlines() if line.startswith("VLLM_API_KEY="))
    return line.partition("=")[2]


@pytest.mark.parametrize("verb", [["plan"], ["render"], ["status"], ["profiles", "list"], ["init", "--force"]])
def test_json_is_exactly_one_document(spark: Path, verb: list[str]) -> None:
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    document = dflash(*verb, "--json", at=spark, environment=nowhere).document
    assert set(document) == {"schema", "command", "status", "data", "findings", "error"}
    assert document["schema"] == 1
    assert document["command"] == " ".join(word for word in verb if word != "--force")


def test_plan_says_all_that_it_promises(spark: Path) -> None:
    data = dflash("plan", "--json", at=spark).succeeded().document["data"]
    assert set(data) >= {"command", "settings", "profile", "engine", "pair", "memory", "speed"}
    assert data["command"][:2] == ["vllm", "serve"]
    assert all(set(setting) == {"name", "value", "origin", "reason", "source"} for setting in data["settings"])


@pytest.mark.parametrize("verb", [["plan"], ["render"], ["profiles", "list"], ["doctor"]])
def test_the_key_is_not_printed(spark: Path, verb: list[str]) -> None:
    for options in ([], ["--json"]):
        ran = dflash(*verb, *options, at=spark)
        assert key_of(spark) not in ran.out + ran.err


def test_a_key_that_got_into_another_setting_is_redacted(tmp_path: Path) -> None:
    initialise("--profile", "cpu", at=tmp_path)
    edit_env(tmp_path, EXTRA_ARGS=f"'--lora-modules {key_of(tmp_path)}'")
    for options in ([], ["--json"]):
        ran = dflash("plan", *options, at=tmp_path).succeeded()
        assert key_of(tmp_path) not in ran.out + ran.err
        assert "[redacted]" in ran.out


def test_text_is_printed_as_it_is(tmp_path: Path) -> None:
    initialise("--profile", "cpu", at=tmp_path)
    edit_env(tmp_path, EXTRA_ARGS="'--lora-modules a:key:b [bold]'")
    assert "a:key:b [bold]" in dflash("plan", at=tmp_path).succeeded().out


def test_a_pipe_gets_plain_text(spark: Path) -> None:
    ran = dflash("plan", at=spark, environment={"FORCE_COLOR": ""}).succeeded()
    assert "\x1b" not in ran.out + ran.err


def test_a_second_render_changes_nothing(spark: Path) -> None:
    assert dflash("render", "--json", at=spark).succeeded().document["data"]["changed"] is False


def test_force_keeps_the_key(spark: Path) -> None:
    before = key_of(spark)
    dflash("init", "--profile", "dgx-spark", "--force", at=spark).succeeded()
    assert key_of(spark) == before


def test_each_verb_explains_itself(tmp_path: Path) -> None:
    overview = dflash("--help", at=tmp_path).succeeded().out
    verbs = (
        "init",
        "plan",
        "doctor",
        "pull",
        "render",
        "up",
        "down",
        "status",
        "logs",
        "test",
        "bench",
        "profiles",
        "models",
        "keys",
        "image",
        "restart",
        "rollback",
    )
    for verb in verbs:
        assert verb in overview
        assert "Usage" in dflash(verb, "--help", at=tmp_path).succeeded().out


def test_an_unknown_option_is_a_usage_error(tmp_path: Path) -> None:
    assert dflash("init", "--profil", "cpu", at=tmp_path).code is ExitCode.USAGE


def test_wishes_in_a_deployment_keep_the_deployment(spark: Path) -> None:
    data = dflash("plan", "--goal", "latency", "--json", at=spark).succeeded().document["data"]
    assert (data["profile"], data["pair"]) == ("dgx-spark", "qwen3.8-27b-nvfp4-nvidia")
    data = dflash("plan", "--model", "qwen3.5-27b-fp8", "--json", at=spark).succeeded().document["data"]
    assert (data["profile"], data["engine"]) == ("dgx-spark", "vllm-0.33")


def test_an_emptied_drafter_is_shown_as_none(spark: Path) -> None:
    assert "no drafter" not in dflash("plan", at=spark).out
    edit_env(spark, DFLASH_DRAFTER="")
    assert "DFLASH_DRAFTER=  (.env)\n    empty in .env: no drafter; the plan proposes " in dflash("plan", at=spark).out


def test_a_plan_that_up_refuses_says_so(tmp_path: Path) -> None:
    ran = dflash("plan", "--profile", "h100", "--max-model-len", "1000000", at=tmp_path).succeeded()
    assert "will not start this" in ran.out
    assert "will not start this" not in dflash("plan", "--profile", "cpu", at=tmp_path).succeeded().out


def test_a_table_in_a_pipe_is_not_cut(tmp_path: Path) -> None:
    listed = dflash("models", "list", "--profile", "rtx-3090", at=tmp_path).succeeded().out
    lines = listed.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("model"))
    assert lines[head].split() == ["model", "GB", "context", "tok/s", "date", "evidence"]
    assert re.fullmatch(r"qwen3\.8-27b-gguf +18\.2 +65,536 x 1 +71 2026-08 reported", lines[head + 1])
    assert "gemma-4-26b-a4b-it-uncensored-nvfp4" in listed
    assert "qwen3.5-27b-gguf-buun" in listed
    assert "…" not in listed
    assert "gemma-4-31b-it-bf16" not in listed
    every = dflash("models", "list", "--profile", "rtx-3090", "--all", at=tmp_path).succeeded().out
    others = int(re.findall(r"(\d+) others are not compatible", listed)[0])
    assert len(every.partition("not compatible")[2].strip().splitlines()) >= others > 10
    assert "gemma-4-31b-it-bf16" in every


@pytest.mark.parametrize(
    "words", ["profiles --json", "profiles list --json", "profiles --json list", "--json profiles list"]
)
def test_json_is_before_the_command_or_behind_it(tmp_path: Path, words: str) -> None:
    assert "profiles" in dflash(*words.split(), at=tmp_path).succeeded().document["data"]


def test_an_option_that_a_command_does_not_have_is_refused(tmp_path: Path) -> None:
    ran = dflash("--json-stream", "plan", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "`plan` has no --json-stream" in ran.err


def test_quiet_leaves_results_and_errors_and_verbose_adds_the_programs(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    usual, quiet, verbose = (
        dflash("doctor", *words, "--dir", str(place), at=tmp_path) for words in ((), ("-q",), ("-v",))
    )
    assert f"note: {place} does not exist" in usual.err
    assert "note:" not in quiet.err
    assert " ok, " in quiet.out
    assert "debug: runs docker" in verbose.err
