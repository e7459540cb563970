"""`tune` as a command: what it would do, and what it refuses."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.ports import free_port
from tests.support.screen import on_screen


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path)
    return tmp_path


def refused(ran: Ran, code: ExitCode, *says: str) -> None:
    assert ran.code is code, ran.out + ran.err
    assert ran.err.strip().splitlines()[-1].startswith("  hint: ")
    for text in says:
        assert text in ran.err


def files_in(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_dry_run_says_what_would_be_measured_and_starts_nothing(deployment: Path) -> None:
    before = files_in(deployment)
    options = ("--draft-tokens", "3,7", "--concurrency", "1,4", "-w", "own,prose")
    data = dflash("tune", "--dry-run", "--json", *options, at=deployment).succeeded().document["data"]
    assert [(step["title"], step["settings"].get("DFLASH_NUM_SPEC_TOKENS")) for step in data["steps"]] == [
        ("7 draft tokens", None),
        ("3 draft tokens", "3"),
        ("no drafter", None),
    ]
    assert data["concurrency"] == [1, 4]
    assert data["workload"]["name"] == "own + prose"
    assert data["context"] == 0
    longer = dflash("tune", "--dry-run", "--context", "1000", *options, at=deployment).succeeded().out
    assert "prompts, each after 1,000 tokens of a conversation" in longer
    assert "restarts  2 to 4" in dflash("tune", "--dry-run", *options, at=deployment).succeeded().out
    assert files_in(deployment) == before


def test_one_number_says_nothing_about_others(deployment: Path) -> None:
    data = dflash("tune", "--dry-run", "--json", "--draft-tokens", "7", at=deployment).succeeded().document["data"]
    assert [step["title"] for step in data["steps"]] == ["7 draft tokens", "1 draft token", "no drafter"]


def test_a_schedule_that_is_there_is_measured_as_it_is(deployment: Path) -> None:
    dflash("init", "--force", "--profile", "h100", "--model", "qwen3.5-27b-fp8", at=deployment).succeeded()
    edit_env(deployment, DFLASH_SPEC_SCHEDULE="1-2:7,3-4:1")
    data = dflash("tune", "--dry-run", "--json", at=deployment).succeeded().document["data"]
    titles = [step["title"] for step in data["steps"]]
    assert titles == ["as .env has it", "1 draft token", "15 draft tokens", "no drafter"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--mtp", "2"), "bench --baseline --mtp 2"),
        (("--no-schedule",), "DFLASH_SPEC_SCHEDULE"),
        (("--draft-tokens", "1,x"), "--draft-tokens 1,x"),
        (("--draft-tokens", "8"), "makes 1 to 7 draft tokens"),
        (("--draft-tokens", "0"), "makes 1 to 7 draft tokens"),
        (("--concurrency", "0"), "--concurrency 0"),
        (("--concurrency", "1,64"), "answers 4 requests"),
        (("-w", "coed"), "coed"),
        (("-w", "agents"), "cannot be tuned for"),
    ],
)
def test_what_makes_no_sense_is_refused(deployment: Path, options: tuple[str, ...], says: str) -> None:
    refused(dflash("tune", *options, at=deployment), ExitCode.USAGE, says)


def test_without_a_drafter_there_is_nothing_to_tune(deployment: Path) -> None:
    edit_env(deployment, DFLASH_DRAFTER="off")
    refused(dflash("tune", "--dry-run", at=deployment), ExitCode.USAGE, "without speculative decoding")


def test_an_engine_that_does_not_count_its_drafts_is_not_tuned(tmp_path: Path) -> None:
    initialise("--profile", "h100", "--engine", "sglang", at=tmp_path)
    refused(dflash("tune", "--dry-run", at=tmp_path), ExitCode.USAGE, "SGLang", "has no counters")


def test_nothing_is_measured_of_an_engine_that_is_not_up(deployment: Path) -> None:
    refused(dflash("tune", "-w", "own", at=deployment), ExitCode.NOT_READY, "dflash-deploy up")


def test_there_must_be_a_deployment(tmp_path: Path) -> None:
    refused(dflash("tune", at=tmp_path), ExitCode.USAGE, "no deployment")


def test_a_terminal_is_asked_before_the_engine_restarts(deployment: Path) -> None:
    before = files_in(deployment)
    with on_screen("tune", "-w", "own", at=deployment) as screen:
        screen.shows("restarts  2 to 4; other clients are not answered meanwhile")
        screen.shows("Restart the engine now? [y/N]:")
        screen.types("")
        assert screen.ended() == ExitCode.INTERRUPTED
    assert files_in(deployment) == before
