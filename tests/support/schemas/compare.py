"""What a schema may not change within one version of the documents: docs/reference/json.md has the rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]

_WIDER = {"integer": {"integer", "number"}}
"""Types that include a type: a number may become an integer, but not the other way round."""


def breaches(old: Node, new: Node) -> list[str]:
    """Every change from the old to the new schema that can break a program written for the old one."""
    return list(_Pair(old, new).compare(old, new, "document"))


class _Pair:
    """Two whole schemas, in which references are looked up."""

    def __init__(self, old: Node, new: Node) -> None:
        self._old = old
        self._new = new

    def compare(self, old: Node, new: Node, path: str) -> Iterator[str]:
        """The breaches from one place on."""
        before, after = list(_alternatives(self._old, old)), list(_alternatives(self._new, new))
        types = {type_ for one in before for type_ in _types(one)}
        further = {type_ for one in after for type_ in _types(one) if not _WIDER.get(type_, {type_}) & types}
        if types and further:
            yield f"{path}: may be {', '.join(sorted(further))} now"
            return
        yield from _changed_values(before, after, path)
        for one in before:
            if "properties" in one or "items" in one or isinstance(one.get("additionalProperties"), dict):
                yield from self._nearest(one, after, path)

    def _nearest(self, old: Node, after: list[Node], path: str) -> Iterator[str]:
        """The breaches between one old alternative and the new one with the most of its properties and few others."""
        alike = [new for new in after if _types(new) == _types(old)]
        known = set(old.get("properties", ()))
        if not alike:
            yield f"{path}: gone"
            return
        names = [set(new.get("properties", ())) for new in alike]
        nearest = max(range(len(alike)), key=lambda at: (len(known & names[at]), -len(names[at] - known)))
        yield from self._inside(old, alike[nearest], path)

    def _inside(self, old: Node, new: Node, path: str) -> Iterator[str]:
        theirs = new.get("properties", {})
        for name, one in old.get("properties", {}).items():
            if name not in theirs:
                yield f"{path}.{name}: gone"
                continue
            if name in old.get("required", ()) and name not in new.get("required", ()):
                yield f"{path}.{name}: may be missing now"
            yield from self.compare(one, theirs[name], f"{path}.{name}")
        for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(old.get(key), dict):
                if not isinstance(new.get(key), dict):
                    yield f"{path}{mark}: may be anything now"
                    continue
                yield from self.compare(old[key], new[key], f"{path}{mark}")


def _alternatives(whole: Node, schema: Node) -> Iterator[Node]:
    """The schema with references resolved; each of several if it is one of them."""
    if "$ref" in schema:
        yield from _alternatives(whole, whole["$defs"][schema["$ref"].rpartition("/")[2]])
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _alternatives(whole, one)
    else:
        yield schema


def _types(schema: Node) -> set[str]:
    said = schema.get("type", [])
    return {said} if isinstance(said, str) else set(said)


def _values(schemas: list[Node]) -> set[Any] | None:
    """The values that are allowed; `None` if there are further ones."""
    known = [one["enum"] if "enum" in one else [one["const"]] for one in schemas if "enum" in one or "const" in one]
    free = [one for one in schemas if not {"enum", "const"} & set(one) and _types(one) != {"null"}]
    return None if free else {value for values in known for value in values}


def _changed_values(before: list[Node], after: list[Node], path: str) -> Iterator[str]:
    """Values that are gone. New ones may come, but a list of values stays one, and a single value stays the same."""
    old, new = _values(before), _values(after)
    if old is None:
        return
    if new is None:
        yield f"{path}: may be any value now"
        return
    yield from (f"{path}: the value {value!r} is gone" for value in sorted(old - new, key=str))
    if any("const" in one for one in before) and new > old:
        yield f"{path}: was always {', '.join(map(repr, old))}"
