"""The fields of an object of Kubernetes, each of which has to be read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class UnknownField(ValueError):
    """A manifest has a field, or a value, that these tests do not translate."""


class Fields:
    """The fields of one object. `where` is its place in the manifest."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._left, self.where = dict(values), where

    def take(self, name: str, *default: Any) -> Any:
        """The value of a field. One without a default must be there."""
        if name not in self._left and not default:
            raise UnknownField(f"{self.where}.{name} is missing")
        return self._left.pop(name, *default)

    def only(self, name: str, *allowed: Any) -> None:
        """A field that must have one of these values, which ask for nothing here."""
        value = self.take(name)
        if not any(value is one or (value == one and not isinstance(one, bool)) for one in allowed):
            raise UnknownField(f"{self.where}.{name} is {value!r}, and not one of {allowed}")

    def each(self, name: str) -> list[tuple[str, Any]]:
        """The objects of a list, with their places. A field that is missing is an empty list."""
        return [(f"{self.where}.{name}[{index}]", one) for index, one in enumerate(self.take(name, []))]

    def left(self) -> list[str]:
        """The names that were not read yet."""
        return sorted(self._left)


@contextmanager
def fields(values: Mapping[str, Any], where: str) -> Iterator[Fields]:
    """The fields of an object. At the end of the block all must have been read."""
    found = Fields(values, where)
    yield found
    if found.left():
        raise UnknownField(f"{where} has {', '.join(found.left())}, which is not translated")
