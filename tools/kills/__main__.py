"""`python -m tools.kills [COUNT [COMMAND ...]]`: kills each command at random moments and prints a table.

A moment is a random time between the first effect of the command on its directory and its usual end. After each kill
the files are compared with those before and after a run that nothing disturbs; then the same command runs again.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

from tools.kills.scenes import COMMANDS, scene

COLUMNS = ("command", "kills", "in time", "new key", "whole after the kill and the second run", "minutes")


def main(count: int, commands: tuple[str, ...]) -> int:
    """Run all kills; return the number of those after which something was wrong."""
    chance, failed = random.Random(), 0
    print(" | ".join(COLUMNS))
    for command in commands:
        began, hit, turned, whole = time.monotonic(), 0, 0, 0
        with tempfile.TemporaryDirectory() as place, scene(command, Path(place)) as trial:
            for _ in range(count):
                wrong = trial.killed(after=chance.uniform(0, trial.seconds))
                hit, turned, whole = hit + trial.hit, turned + trial.turned, whole + (not wrong)
                for one in wrong:
                    print(f"  {command}: {one}")
                trial.reset()
        failed += count - whole
        figures = (command, count, hit, turned, f"{whole} of {count}", f"{(time.monotonic() - began) / 60:.1f}")
        print(" | ".join(map(str, figures)), flush=True)
    return failed


if __name__ == "__main__":
    numbers, names = sys.argv[1:2], sys.argv[2:]
    sys.exit(main(int(numbers[0]) if numbers else 100, tuple(names or COMMANDS)) > 0)
