"""Input from the environment and files of a stranger: one line with a hint, or it is ignored; a key is never shown."""

import os
from importlib import resources
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import PACKAGED
from dflash_deploy.errors import ExitCode
from tests.cli.test_bad_input import refused
from tests.support.cli import dflash, edit_env, initialise

SECRET = "Xk39dkLLw02kdm38"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("size", ["-1", "abc", "", "1e3", "٣"])
def test_a_size_of_a_terminal_that_is_none_is_ignored(deployment: Path, name: str, size: str) -> None:
    dflash("plan", at=deployment, environment={name: size}).succeeded()


@pytest.mark.parametrize("number", ["x", "²", "-1", "9" * 5000, ""])
def test_a_completion_at_a_place_that_is_none_completes_nothing(tmp_path: Path, number: str) -> None:
    told = {"COMP_CWORD": number, "COMP_WORDS": "dflash-deploy pl", "_DFLASH_DEPLOY_COMPLETE": "complete_bash"}
    done = dflash(at=tmp_path, environment=told)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "link to nothing"])
def test_what_is_no_file_in_the_place_of_the_lock_is_set_aside(deployment: Path, kind: str) -> None:
    lock = deployment / ".dflash" / "lock"
    lock.parent.mkdir(exist_ok=True)
    lock.unlink(missing_ok=True)
    other = deployment / "other"
    other.write_text("mine")
    match kind:
        case "fifo":
            os.mkfifo(lock)
        case "folder":
            lock.mkdir()
        case _:
            lock.symlink_to(other if kind == "link" else deployment / "nothing")
    dflash("render", at=deployment).succeeded()
    assert other.read_text() == "mine"
    assert lock.is_file()


@pytest.mark.parametrize("place", ["", "  bundled: models/none\n", "  repo: a/b\n  bundled: models/tiny/target\n"])
def test_an_own_catalog_whose_weights_have_no_place(tmp_path: Path, place: str) -> None:
    families = tmp_path / "own" / "families"
    families.mkdir(parents=True)

    text = (resources.files(PACKAGED) / "families" / "tiny.yaml").read_text(encoding="utf-8")
    (families / "mine.yaml").write_text(text.replace("  bundled: models/tiny/drafter\n", place, 1))
    done = dflash("plan", "--profile", "cpu", at=tmp_path, environment={"DFLASH_CATALOG": str(tmp_path / "own")})
    assert done.code is not ExitCode.UNEXPECTED, done.err
    assert "unexpected" not in done.err
    assert "\n  hint: " in done.err


@pytest.mark.parametrize("url", [b"http://127.0.0.1:9/\xff\xfe", b"http://\xff/", b"\xff"])
def test_bytes_that_are_no_text_are_no_url(tmp_path: Path, url: bytes) -> None:
    refused(dflash("test", "--url", os.fsdecode(url), at=tmp_path), ExitCode.USAGE, "not a valid URL")


def test_a_log_ends_no_block_of_an_issue(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("````\n@you ```` [here](http://x)\nValueError: ```boom```\n")
    said = dflash("explain", "--issue", str(log), at=tmp_path).out
    fence = next(line for line in said.splitlines() if line.endswith("text") and line.startswith("`"))
    ticks = fence.removesuffix("text")
    inside = said.partition(f"{fence}\n")[2].rpartition(f"\n{ticks}")[0]
    assert "ValueError" in inside
    assert ticks not in inside


@pytest.mark.parametrize("value", [f'"back\\slash-{SECRET}"', f'"it\'s-{SECRET}"'])
@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN"])
def test_a_key_that_cannot_be_written_is_not_shown(deployment: Path, name: str, value: str) -> None:
    env = deployment / ".env"
    lines = [line for line in env.read_text().splitlines() if not line.startswith(f"{name}=")]
    env.write_text("\n".join([*lines, f"{name}={value}"]) + "\n")
    done = dflash("init", "--force", "--profile", "cpu", "--runtime", "native", at=deployment)
    refused(done, ExitCode.USAGE, name)
    assert SECRET not in done.out + done.err


def test_a_linked_env_stays_a_link(deployment: Path, tmp_path: Path) -> None:
    env, real = deployment / ".env", tmp_path / "real.env"
    env.rename(real)
    env.symlink_to(real)
    dflash("init", "--force", "--profile", "cpu", "--runtime", "native", at=deployment).succeeded()
    edit_env(deployment, MAX_NUM_SEQS="2")
    dflash("keys", "add", "someone", at=deployment).succeeded()
    assert env.is_symlink()
    assert "someone" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600
