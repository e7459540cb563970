"""Parses JSON and YAML from outside; errors name the key.

pydantic's parser (jiter) reads JSON: it refuses NaN and more than 200 levels without recursion. libyaml reads YAML:
texts from outside are checked event by event before any value is built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

import yaml
from pydantic_core import from_json

from dflash_deploy.intake.files import MIB

LONGEST_KEY = 80  # characters of a key that a message shows
LONGEST_PLACE = 200  # characters of a place that a message shows


class Invalid(ValueError):
    """Raised when a text is not valid JSON or YAML, does not match its document, or exceeds a limit.

    The message completes a sentence that begins with the file's name: "is not valid JSON: …".
    """


def printable(key: object) -> str:
    """Return a key for a message: cut, and without control characters, which would act on a terminal or end a line."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(key)[: LONGEST_KEY + 1])
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


def place_of(keys: Iterable[object]) -> str:
    """Return a place in a document for a message, such as `files.0.size`."""
    place = ".".join(map(printable, keys))
    return place if len(place) <= LONGEST_PLACE else f"{place[:LONGEST_PLACE]}…"


MOST_BYTES = 16 * MIB
# Values of a text, counted as commas and brackets. A list of empty lists needs 30 times the memory of its text.
MOST_VALUES = 1_000_000

LARGEST = 2**64  # integers are smaller: every number that a file states, such as a size or a seed, fits into 64 bits
_MAYBE_LARGE = re.compile(rb"[0-9]{19}|[0-9][eE]\+?[0-9]{2}")


def parse_json(text: bytes | str, *, limit: int = MOST_BYTES, values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text. If a key occurs twice, its last value counts.

    Raises Invalid if the text is not valid UTF-8 and JSON, has more than `limit` bytes, `values` values or 200 levels,
    or if a number is infinite or does not fit into 64 bits.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > limit:
        raise Invalid(f"is too large: {len(raw)} bytes (limit: {limit})")
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > values:
        raise Invalid(f"has more than {values} values")
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as problem:
        raise Invalid(f"is not valid JSON: {problem}") from None
    if _MAYBE_LARGE.search(raw):
        _check_numbers(value)
    return value


def parse_object(text: bytes | str, *, limit: int = MOST_BYTES, values: int = MOST_VALUES) -> dict[str, Any]:
    """Return the value of a JSON text that is an object. Raises Invalid as `parse_json` does, and for other values."""
    value = parse_json(text, limit=limit, values=values)
    if not isinstance(value, dict):
        raise Invalid("is not a JSON object")
    return value


def _check_numbers(value: object) -> None:
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            left += node.values()
        elif isinstance(node, list):
            left += node
        elif isinstance(node, int) and abs(node) >= LARGEST:
            raise Invalid("has an integer that does not fit into 64 bits")
        elif isinstance(node, float) and not math.isfinite(node):
            raise Invalid("has a number that is too large")


MOST_YAML_BYTES = MIB
MOST_LEVELS = 50
MOST_YAML_VALUES = 100_000  # values of one text after all aliases are expanded
LARGEST_YAML = 2**64

# libyaml's problem at 1,000 levels, since 0.2.6. Up to 1,024 characters ahead it looks for the colon of a key, and so
# may raise this before the events of the first 50 levels are seen.
_TOO_DEEP = "exceeded maximum nesting depth"

# libyaml's loader, which is in PyYAML's wheels. The pure Python loader adds half a second to every command.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Mark(Protocol):
    """A place in a text: libyaml's loader and the one in Python have classes of their own. `line` counts from 0."""

    line: int


class _Loader(_Safe):  # type: ignore[misc] # one of two classes, known when it runs
    """A safe loader whose dates are text, as in YAML 1.2, and whose numbers are finite and fit into 64 bits."""

    yaml_implicit_resolvers: ClassVar[Mapping[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in _Safe.yaml_implicit_resolvers.items()
    }

    def bounded_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer. Raises Invalid if it does not fit into 64 bits."""
        if len(node.value) > MOST_DIGITS or abs(number := int(self.construct_yaml_int(node))) >= LARGEST_YAML:
            raise Invalid(f"has an integer that does not fit into 64 bits{_at(node)}")
        return number

    def finite_float(self, node: yaml.ScalarNode) -> float:
        """Return a float. Raises Invalid if it is infinite or not a number."""
        if len(node.value) > MOST_DIGITS or not math.isfinite(number := float(self.construct_yaml_float(node))):
            raise Invalid(f"has a number that is not finite{_at(node)}")
        return number


MOST_DIGITS = 100

_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.bounded_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.finite_float)


def parse_packaged_yaml(text: str) -> Any:
    """Return the value of a YAML text that is part of this package, without the checks of `parse_yaml`."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader


def parse_yaml(text: str, *, limit: int = MOST_YAML_BYTES) -> Any:
    """Return the value of a YAML text with one document. Dates are text.

    Raises Invalid if the text is not valid YAML, has a tag, more than `limit` bytes, 50 levels or 100,000 values, or
    if a number is not finite or does not fit into 64 bits.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise Invalid(f"is too large: {size} bytes (limit: {limit})")
    try:
        check = _Check()
        for event in yaml.parse(text, Loader=_Safe):
            check.take(event)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except Invalid:
        raise
    # PyYAML raises ValueError too, for a sexagesimal number or a character that YAML does not allow
    except (yaml.YAMLError, ValueError, TypeError) as problem:
        raise Invalid(_worded(problem)) from None


def _worded(problem: Exception) -> str:
    """What is wrong with a text that PyYAML refuses."""
    if isinstance(problem, yaml.MarkedYAMLError) and problem.problem == _TOO_DEEP:
        return _too_deep(problem.problem_mark)
    return f"is not valid YAML: {' '.join(str(problem).split())}"


class _Check:
    """Counts the values of a text, event by event, with every alias expanded."""

    def __init__(self) -> None:
        self._total = 0
        self._sizes: dict[str, int] = {}
        self._open: list[tuple[str | None, int]] = []

    def take(self, event: yaml.Event) -> None:
        """Raise Invalid for an alias inside its own value, a tag, too many levels, and too many values."""
        if isinstance(event, yaml.AliasEvent):
            self._expand(event)
        elif isinstance(event, yaml.ScalarEvent):
            self._begin(event, event.tag)
            if event.anchor:
                self._sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event, event.tag)
            self._open.append((event.anchor, self._total))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor:
                self._sizes[anchor] = self._total - before + 1
        if len(self._open) > MOST_LEVELS:
            raise Invalid(_too_deep(event.start_mark))
        if self._total > MOST_YAML_VALUES:
            raise Invalid(f"has more than {MOST_YAML_VALUES} values{_at(event)}")

    def _begin(self, event: yaml.Event, tag: str | None) -> None:
        if tag not in {None, "!"}:
            raise Invalid(f"has a tag, which is not supported{_at(event)}")
        self._total += 1

    def _expand(self, event: yaml.AliasEvent) -> None:
        if any(anchor == event.anchor for anchor, _ in self._open):
            raise Invalid(f"has an alias inside its own value{_at(event)}")
        # an alias without an anchor is an error of the parser that builds the values
        self._total += self._sizes.get(event.anchor or "", 1)


def _at(place: yaml.Event | yaml.Node) -> str:
    return _at_mark(place.start_mark)


def _too_deep(mark: _Mark | None) -> str:
    return f"is nested deeper than {MOST_LEVELS} levels{_at_mark(mark)}"


def _at_mark(mark: _Mark | None) -> str:
    return f" (line {mark.line + 1})" if mark else ""
