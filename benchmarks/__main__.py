"""`python -m benchmarks`: the rows that README.md shows.

Everything is measured in one run on one machine, five times at the least; a ratio of medians is what counts, since
absolute times of a shared machine are not stable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks import command, downloads, drafter, load, lock, speed_model, start, tune
from benchmarks.rows import table


def main() -> None:
    """Run the groups named on the command line, or all."""
    groups: dict[str, Callable[[], Table]] = {
        "speed-model": speed_model.table,
        "command": lambda: table("command", command.rows(), ("docker", "dflash-deploy")),
        "downloads": lambda: table("downloads", downloads.rows()),
        "drafter": lambda: table("drafter", drafter.rows()),
        "load": lambda: table("load", load.rows(), ("other", "bench")),
        "lock": lambda: table("lock", lock.rows()),
        "start": lambda: table("start", start.rows()),
        "tune": lambda: tune.table(eager=True),
        "tune-compiled": lambda: tune.table(eager=False),
    }
    screen = Console()
    for name in sys.argv[1:] or groups:
        screen.print(groups[name]())


if __name__ == "__main__":
    main()
