"""Commands that are killed at any of their effects on the disk, or lose power there: the same command goes on.

`python -m tools.kills` kills them at random moments, hundreds of times.
"""

from pathlib import Path

import pytest

from tools.kills.scenes import scene
from tools.kills.steps import steps, wrong_after_kills

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", ["init", "render", "keys rotate"])
def test_a_killed_command_leaves_whole_files_and_the_next_one_nothing_of_it(command: str, tmp_path: Path) -> None:
    with scene(command, tmp_path) as trial:
        assert len(steps(trial)) >= 5
        assert not wrong_after_kills(trial)


@pytest.mark.parametrize("command", ["up", "rollback"])
def test_a_killed_start_leaves_one_engine_that_the_next_one_finds(command: str, tmp_path: Path) -> None:
    with scene(command, tmp_path) as trial:
        started = next(number for number, effect in enumerate(trial.effects, 1) if effect == "subprocess.Popen")
        remembered = max(number for number, effect in enumerate(trial.effects, 1) if effect.startswith("os.re"))
        # the second: it runs, and the command has not seen run.json yet
        for number, power in ((started + 1, False), (remembered, True)):
            assert not trial.killed(at_effect=number, power=power)
            trial.reset()
