"""Hard links from one directory into another, also if a mount covers that: dockerd mounts its data over itself.

    python -m tests.support.linked FROM INTO < PAIRS

Each pair is a path in FROM and a path in INTO, which does not exist; every path ends with a null character. It needs
root, and a mount namespace of its own, in which it takes the covering mounts away.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.commands import is_installed
from tests.support.procfs import mount_points


def link_files(origin: Path, target: Path, pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether each of the files of `origin` is now in `target` too; if not, some may be."""
    if not is_installed("unshare"):
        return False
    command = ["unshare", "--mount", sys.executable, "-m", "tests.support.linked", str(origin), str(target)]
    given = "".join(f"{path}\0" for pair in pairs for path in pair)
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, input=given.encode(), capture_output=True, check=False).returncode == 0


def main(origin: Path, target: Path, paths: list[str]) -> int:
    """Link them, or say why not."""
    for point in mount_points(Path("/")):
        if target.is_relative_to(point) and not origin.is_relative_to(point):
            subprocess.run(["umount", "--lazy", str(point)], check=True)
    try:
        for there, here in zip(paths[::2], paths[1::2], strict=True):
            os.link(origin / there, target / here, follow_symlinks=False)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.stdin.read().split("\0")[:-1]))
