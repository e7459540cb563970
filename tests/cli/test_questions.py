"""The questions of `init`: on a terminal without options only, at most five, each with a default."""

import os
import re
import sys
from pathlib import Path

import pexpect
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise
from tests.support.ports import free_port
from tests.support.recorded import plays


def spawned(
    *options: str, at: Path, path: str = os.environ["PATH"], command: str = "init", home: Path | None = None
) -> pexpect.spawn:
    """`init`, or another command, on a terminal of 80 columns."""
    at.mkdir(exist_ok=True)
    arguments = ["-m", "dflash_deploy", command, *options]
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "xterm-256color"}
    if home is not None:
        environment["HOME"] = str(home)
    return pexpect.spawn(
        sys.executable, arguments, cwd=at, env=environment, encoding="utf-8", timeout=60, dimensions=(24, 80)
    )


def profile_and_use(child: pexpect.spawn, profile: str, use: str = "") -> None:
    """Answer the first two questions; empty answers accept the default."""
    child.expect("Hardware profile")
    child.sendline(profile)
    child.expect(r"Use \(chat, coding or vision\) \[chat\]: ")
    child.sendline(use)


def ended(child: pexpect.spawn) -> int:
    """The exit code, after the last question."""
    if child.expect([r"Runtime \(compose or native\)", pexpect.EOF]) == 0:
        child.sendline("native")
        child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def test_enter_accepts_each_default(tmp_path: Path) -> None:
    child = spawned(at=tmp_path)
    child.expect(r"This machine: .*CPU cores")
    profile_and_use(child, "")
    child.expect(r"Port \[\d+\]: ")
    child.sendline("")
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path).values["DFLASH_PROFILE"] == "cpu"


def test_an_answer_that_is_not_valid_is_asked_for_again(tmp_path: Path) -> None:
    child, port = spawned(at=tmp_path), free_port()
    child.expect("Hardware profile")
    child.sendline("rtx-9090")
    child.expect("`rtx-9090` is not a known profile")
    profile_and_use(child, "cpu", "coding")
    child.expect("Port")
    child.sendline("70000")
    child.expect(r"`70000` is not a valid port \(1-65535\)")
    child.expect("Port")
    child.sendline(str(port))
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path).values["DFLASH_PORT"] == str(port)
    assert Deployment(tmp_path).values["DFLASH_GOAL"] == "coding"


def test_a_gpu_gets_its_profile_and_a_directory_for_the_weights(tmp_path: Path) -> None:
    plays(tmp_path / "bin", "nvidia-smi", "rtx5090.txt")
    child = spawned(at=tmp_path / "box", path=f"{tmp_path}/bin:/usr/bin:/bin")
    child.expect("RTX 5090")
    profile_and_use(child, "")
    child.expect(r"Recipe \[first\]: ")
    child.sendline("")
    child.expect(r"Directory for the weights \[~/models\]: ")
    child.sendline(str(tmp_path / "weights"))
    child.expect("Port")
    child.sendline("")
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path / "box").values["MODEL_HOST_PATH"].startswith(str(tmp_path / "weights"))


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    child = spawned(at=tmp_path)
    child.expect("Hardware profile")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == ExitCode.INTERRUPTED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--yes", "--json", "--profile=cpu", "--port=8123", "--no-drafter"])
def test_options_ask_nothing(option: str, tmp_path: Path) -> None:
    child = spawned(option, at=tmp_path)
    child.expect(pexpect.EOF)
    child.close()
    assert "Hardware profile" not in child.before
    assert child.exitstatus == ExitCode.DONE


def test_a_deployment_is_refused_before_the_first_question(tmp_path: Path) -> None:
    initialise("--profile", "cpu", at=tmp_path)
    child = spawned(at=tmp_path)
    # the rest of the line may be folded behind a long path
    child.expect("already")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == ExitCode.USAGE


PROPOSAL = ("model", "download", "context", "speed", "licence")


def test_up_proposes_what_fits_in_five_lines_and_writes_nothing_without_consent(tmp_path: Path) -> None:
    plays(tmp_path / "bin", "nvidia-smi", "rtx5090.txt")
    box = tmp_path / "box"
    child = spawned(at=box, path=f"{tmp_path}/bin:/usr/bin:/bin", command="up", home=tmp_path)
    child.expect(r"Start it\? \[Y/n\]: ")
    shown = child.before.splitlines()
    assert tuple(line.split()[0] for line in shown if line[:1].isalpha()) == PROPOSAL
    said = " ".join(" ".join(shown).split())
    assert re.search(r"download [0-9.]+ GB .* context [0-9,]+ tokens.* speed about \d+ tokens/s", said)
    child.sendline("n")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == ExitCode.INTERRUPTED
    assert "nothing has changed" in child.before
    assert list(box.iterdir()) == []


def test_up_in_a_pipe_proposes_nothing_and_names_the_option(tmp_path: Path) -> None:
    ran = dflash("up", at=tmp_path, environment={"HOME": str(tmp_path / "home")})
    assert ran.code is ExitCode.USAGE
    assert "`dflash-deploy up --yes`" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_up_leaves_a_deployment_that_has_lost_its_settings_alone(tmp_path: Path) -> None:
    (tmp_path / ".dflash").mkdir()
    ran = dflash("up", "--yes", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "its .env is missing" in ran.err


def test_a_pipe_is_asked_nothing(tmp_path: Path) -> None:
    ran = dflash("init", at=tmp_path).succeeded()
    assert "Hardware profile [" not in ran.out + ran.err


TWO = """services:
  a: {image: vllm/vllm-openai, command: Qwen/Qwen3.5-27B-FP8}
  b: {image: vllm/vllm-openai, command: Qwen/Qwen3-8B}
"""


def test_the_engine_of_a_recipe_with_several_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text(TWO)
    child = spawned("--profile", "h100", "--from", "../compose.yml", at=tmp_path / "d")
    child.expect("The recipe starts 2 engines: a, b")
    child.expect(r"Engine \[a\]: ")
    child.sendline("c")
    child.expect(r"`c` is not a valid engine \(a, b\)")
    child.sendline("b")
    assert ended(child) == ExitCode.DONE
    assert Deployment(tmp_path / "d").values["DFLASH_PAIR"] == "qwen3-8b-bf16"


@pytest.mark.parametrize(("answer", "code"), [("y", ExitCode.DONE), ("n", ExitCode.INTERRUPTED)])
def test_a_script_is_run_dry_only_after_a_question(tmp_path: Path, answer: str, code: ExitCode) -> None:
    mark = tmp_path / "ran"
    array = 'args=()\nfor n in 4096; do args+=(--max-model-len "$n"); done\n'
    script = f'echo x > {mark}\n{array}vllm serve Qwen/Qwen3.5-27B-FP8 "${{args[@]}}"\n'
    (tmp_path / "launch.sh").write_text(script)
    child = spawned("--profile", "h100", "--from", "../launch.sh", "--dry-run-script", at=tmp_path / "d")
    child.expect(r"Run it\? \[y/N\]: ")
    assert not mark.exists()
    child.sendline(answer)
    assert ended(child) == code
    assert mark.exists() == (tmp_path / "d" / ".env").exists() == (answer == "y")
