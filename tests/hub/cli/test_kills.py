"""`pull` that is killed at any of its effects on the disk, or loses power there: the same command goes on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dflash_deploy.errors import ExitCode
from tests.support.box import CONFIG, DRAFTER, DRAFTS, TARGET, Box
from tests.support.hub import Hub
from tools.kills.scenes import scene
from tools.kills.steps import steps, wrong_after_kills


def test_a_killed_pull_leaves_whole_files_and_the_next_one_nothing_of_it(tmp_path: Path) -> None:
    with scene("pull", tmp_path) as trial:
        assert len(steps(trial)) >= 8
        assert not wrong_after_kills(trial)


def test_of_two_pulls_at_once_one_is_refused_or_both_succeed(tmp_path: Path) -> None:
    with Hub() as hub, ThreadPoolExecutor(2) as pool:
        hub.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": TARGET})
        hub.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": DRAFTER})
        box = Box(hub, tmp_path)
        ran = list(pool.map(lambda _: box.pull(), range(2)))
    assert ExitCode.DONE in {one.code for one in ran}
    assert all(one.code is ExitCode.DONE or "is in use by another command: pull" in one.err for one in ran)
    assert box.whole()
    assert [file.name for file in tmp_path.rglob("*") if ".pull" in file.parts[-2]] == ["lock", "lock"]
