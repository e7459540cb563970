"""`python -m benchmarks`: prints one table for each group of measurements, the longest only by their names.

Both sides of a row are measured in one run on one machine, at least five times. Compare the ratios of medians:
absolute times on a shared machine are not stable.
"""

from __future__ import annotations

import subprocess
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
    llamacpp,
    load,
    lock,
    memory,
    mtp,
    speed_model,
    start,
    tune,
)
from benchmarks.rows import table
from dflash_deploy.errors import DeployError

LONG = frozenset({"attack", "llamacpp-instructions", "mixed", "mixed-vllm"})  # groups that run only if they are named


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
        "mtp": mtp.table,
        "start": lambda: table("start", start.rows()),
        "tune": lambda: tune.table(eager=True),
        "tune-compiled": lambda: tune.table(eager=False),
    }
    screen = Console()
    for name in sys.argv[1:] or [name for name in groups if name not in LONG]:
        try:
            screen.print(groups[name]())
        except (ImportError, OSError, subprocess.SubprocessError, DeployError) as reason:
            # a peer that is missing: the other groups are still of use
            screen.print(f"{name}: not run: {reason}", markup=False)


if __name__ == "__main__":
    main()
