"""Which properties of the schemas the documents of the tests had, by path such as `data.checks[].name`.

A property counts as seen if it had a value: one that was always null is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# One file for each tier of tests that ran as a whole.
FOLDER = Path(__file__).resolve().parents[3] / ".cache" / "schemas"

SEEN: dict[str, set[str]] = {}  # the paths of this process, by the schema's name


def record(name: str, schema: Mapping[str, Any], document: object) -> None:
    """Add what a document has."""
    SEEN.setdefault(name, set()).update(_walk(schema, schema, document, ""))


def declared(schema: Mapping[str, Any]) -> set[str]:
    """Every path of a schema."""
    return set(_walk(schema, schema, None, "", everything=True))


def unseen(name: str, schema: Mapping[str, Any], seen: Mapping[str, Iterable[str]]) -> list[str]:
    """The paths of a schema that no document had, without those below one that is listed."""
    missing = declared(schema) - set(seen.get(name, ()))
    return sorted(path for path in missing if not any(path.startswith((f"{top}.", f"{top}[")) for top in missing))


def save(tier: str) -> None:
    """Keep what this process saw, for `python -m tools.schemas`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = {name: sorted(paths) for name, paths in SEEN.items()}
    (FOLDER / f"{tier}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def saved() -> dict[str, set[str]]:
    """What all tiers saw together."""
    together: dict[str, set[str]] = {}
    for file in FOLDER.glob("*.json"):
        for name, paths in json.loads(file.read_text(encoding="utf-8")).items():
            together.setdefault(name, set()).update(paths)
    return together


def _walk(
    whole: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: str, *, everything: bool = False
) -> Iterator[str]:
    """The paths of a schema that a value has; all of them with `everything`."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from _walk(whole, one, value, path, everything=everything)
    for name, one in schema.get("properties", {}).items():
        if everything or (isinstance(value, dict) and value.get(name) is not None):
            here = f"{path}.{name}" if path else name
            yield here
            yield from _walk(whole, one, None if everything else value[name], here, everything=everything)
    for key, kind in (("items", list), ("additionalProperties", dict)):
        inner = schema.get(key)
        if isinstance(inner, dict) and (everything or isinstance(value, kind)):
            values = [None] if everything else value.values() if kind is dict else value
            for each in values:
                here = f"{path}[]" if kind is list else f"{path}.*"
                yield here
                yield from _walk(whole, inner, each, here, everything=everything)
