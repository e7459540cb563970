"""`python3 -m dflash_deploy.serve.router.drain SECONDS`: the last wait of a router's pod before SIGTERM.

It ends once SMG has no request in flight, or after SECONDS.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dflash_deploy.serve.drain import drained
from dflash_deploy.serve.router.files import DIRECTORY, SEEN, read_seen


def requests_of(directory: Path) -> int | None:
    """The requests in flight at all engines, as SMG counts them: none before it has engines. `None`: not known."""
    try:
        return sum(worker.load for worker in read_seen(directory / SEEN)[1])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None


def main(argv: list[str]) -> int:
    """Wait; returns 0 also if requests are left: Kubernetes ends the container in any case."""
    directory = Path(os.environ.get(DIRECTORY, ""))
    drained(lambda: requests_of(directory), float(argv[0]), time.monotonic, time.sleep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
