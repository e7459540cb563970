"""`python -m benchmarks`: prints one table for each group of measurements, the longest only by their names.

Both sides of a row are measured in one run on one machine, at least five times. Compare the ratios of medians:
absolute times on a shared machine are not stable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks import (
    attack,
    command,
    downloads,
    drafter,
    explain,
    imports,
    limits,
    llamacpp,
    load,
    lock,
    memory,
    monitoring,
    monitoring_hour,
    mtp,
    speed_model,
    start,
    tune,
)
from benchmarks.rows import table

LONG = frozenset({"attack", "llamacpp-instructions", "mixed", "mixed-vllm", "monitoring-hour"})
"""Groups that run only if they are named."""


def main() -> None:
    """Run the groups named on the command line; without a name, all groups but those of LONG."""
    groups: dict[str, Callable[[], Table]] = {
        "attack": attack.table,
        "mixed": lambda: attack.mixed("llamacpp"),
        "mixed-vllm": lambda: attack.mixed("vllm"),
        "speed-model": speed_model.table,
        "command": lambda: table("command", command.rows(), ("docker", "dflash-deploy")),
        "downloads": lambda: table("downloads", downloads.rows()),
        "drafter": lambda: table("drafter", drafter.rows()),
        "explain": lambda: table("explain", explain.rows(), ("25 MB", "100 MB")),
        "limits": lambda: table("limits", limits.rows(), ("one gateway", "shared")),
        "llamacpp-chunks": lambda: table("llamacpp-chunks", llamacpp.chunks(), ("concurrency 1", "concurrency 8")),
        "llamacpp-instructions": lambda: table(
            "llamacpp-instructions", llamacpp.instructions(), ("concurrency 1", "concurrency 8")
        ),
        "llamacpp-door": lambda: table("llamacpp-door", llamacpp.door(), ("direct", "gateway")),
        "llamacpp-drafter": lambda: table("llamacpp-drafter", llamacpp.drafts()),
        "imports": lambda: table("imports", imports.rows(), ("before", "now")),
        "load": lambda: table("load", load.rows(), ("other", "bench")),
        "lock": lambda: table("lock", lock.rows()),
        "memory": memory.table,
        "monitoring": lambda: table("monitoring", monitoring.rows()),
        "monitoring-disk": monitoring.disk,
        "monitoring-hour": monitoring_hour.table,
        "mtp": mtp.table,
        "start": lambda: table("start", start.rows()),
        "tune": lambda: tune.table(eager=True),
        "tune-compiled": lambda: tune.table(eager=False),
    }
    screen = Console()
    for name in sys.argv[1:] or [name for name in groups if name not in LONG]:
        screen.print(groups[name]())


if __name__ == "__main__":
    main()
