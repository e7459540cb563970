"""`python -m tools.open_issues`: the issues that the catalog calls open, to be read again before each release.

A source is written `OWNER/REPO#NUMBER, open`. If it is closed, check what depends on it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ = {"dflash_deploy": (".yaml", ".py"), "docs": (".md",)}  # folders and the ends of the names of their files
OPEN = re.compile(r"([\w.-]+/[\w.-]+)#(\d+), open\b")


def open_issues(root: Path = ROOT) -> Mapping[str, list[str]]:
    """The places that cite each open issue, by its URL."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder, ends in READ.items():
        for file in sorted(one for one in (root / folder).rglob("*") if one.suffix in ends):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                for repository, issue in OPEN.findall(line):
                    place = f"{file.relative_to(root)}:{number}"
                    found[f"https://github.com/{repository}/issues/{issue}"].append(place)
    return found


if __name__ == "__main__":
    for url, places in sorted(open_issues().items()):
        print(url, *places, sep="\n  ")
