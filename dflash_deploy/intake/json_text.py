"""JSON from outside, parsed by pydantic's parser (jiter): it refuses NaN and more than 200 levels without recursion."""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic_core import from_json

from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.invalid import Invalid

MOST_BYTES = 16 * MIB
MOST_VALUES = 1_000_000
"""Values of a text, counted as commas and brackets. A list of empty lists needs 30 times the memory of its text."""

LARGEST = 2**64
"""Integers are smaller: every number that a file states, such as a size or a seed, fits into 64 bits."""

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
