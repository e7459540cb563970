"""The schemas of the last release, without descriptions: what the present ones are compared with.

`python -m tools.schemas.released` replaces them with the present ones; run it at a release only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash_deploy.schemas.generate import schema_of, subschemas
from dflash_deploy.schemas.table import NAMES

FILE = Path(__file__).with_name("released.json")


def released() -> dict[str, dict[str, Any]]:
    """The schemas of the last release, by name."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def keep() -> None:
    """Make the present schemas those of the release, a line for each."""
    lines = (f"{json.dumps(name)}: {json.dumps(_bare(name), separators=(',', ':'))}" for name in NAMES)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _bare(name: str) -> dict[str, Any]:
    schema = schema_of(name)
    for one in subschemas(schema):
        one.pop("description", None)
    return schema


if __name__ == "__main__":
    keep()
