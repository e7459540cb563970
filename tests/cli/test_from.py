"""`init --from` and `explain --command`, as a person uses them."""

import json
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "dflash_deploy")


def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *words), input=given, capture_output=True, text=True, check=False, timeout=60)


PUBLISHED = """docker run --gpus all --publish 127.0.0.1:8000:8000 --volume /srv/Qwen3.5-27B-FP8:/models/target:ro \\
  vllm/vllm-openai:v0.33.0 /models/target --max-model-len 131072 --enable-prefix-caching"""


def test_a_published_command_is_taken_over_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    recipe = f"docker rm -f $(touch {mark})\n{PUBLISHED} --seed 3 --api-key abcdefgh12345678"
    made = run("init", "--dir", str(tmp_path / "d"), "--profile", "h100", "--from", "-", "--json", given=recipe)
    assert made.returncode == 0, made.stderr
    items = {row["name"]: row["fate"] for row in json.loads(made.stdout)["data"]["recipe"]["items"]}
    assert (items["docker"], items["--api-key"], items["--seed"]) == ("dangerous", "dangerous", "taken")
    env = (tmp_path / "d" / ".env").read_text(encoding="utf-8")
    assert "EXTRA_ARGS='--seed 3'" in env
    assert "abcdefgh12345678" not in env + made.stdout + made.stderr
    assert not mark.exists()


def test_a_recipe_of_an_unknown_model_ends_with_the_table_and_writes_nothing(tmp_path: Path) -> None:
    made = run("init", "--dir", str(tmp_path / "d"), "--profile", "h100", "--from", "vllm serve oM --max-model-len 9")
    assert made.returncode == 2
    assert "MAX_MODEL_LEN=9" in made.stdout
    assert "`oM` is not a known model" in made.stderr
    assert not (tmp_path / "d").exists()
    explained = run("explain", "--profile", "h100", "--command", "vllm serve oM --max-model-len 9")
    assert explained.returncode == 0
    assert "plan     none: `oM` is not a known model" in explained.stdout
