"""`pull` that is killed at any of its effects on the disk, or loses power there: the same command goes on."""

from pathlib import Path

from tools.kills.scenes import scene
from tools.kills.steps import steps, wrong_after_kills


def test_a_killed_pull_leaves_whole_files_and_the_next_one_nothing_of_it(tmp_path: Path) -> None:
    with scene("pull", tmp_path) as trial:
        assert len(steps(trial)) >= 8
        assert not wrong_after_kills(trial)
