"""One setting as a typed attribute: its name in `.env`, its type, unit, default, and the engines that know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")

VLLM, SGLANG, LLAMACPP = "vllm", "sglang", "llamacpp"
"""The templates in env-templates/: engines of one template share their settings."""

EVERY = (VLLM, SGLANG, LLAMACPP)


class Field(Generic[T]):
    """A setting. An attribute of the class is its description, an attribute of an instance its value.

    Its name in `.env` is the attribute's name in capitals, so that the name is written once. `default` is the value of
    an absent or empty setting; `None`, "" or () leaves the choice to the engine. A `secret` has a name here and no
    value: `serve.secrets` reads it. `internal` settings are never in `.env`: `render` and the native runtime set them.
    """

    def __init__(
        self,
        kind: Callable[[str, str], Any],
        default: T,
        *,
        unit: str = "",
        templates: tuple[str, ...] = EVERY,
        secret: bool = False,
        internal: bool = False,
    ) -> None:
        self.kind = kind
        self.default = default
        self.unit = unit
        self.templates = templates
        self.secret = secret
        self.internal = internal
        self.name = ""
        """The name in `.env`."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.name = attribute.upper()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<setting {self.name}>"

    def read(self, values: Mapping[str, str]) -> T:
        """The typed value of this setting in a mapping of texts. Raises Refused, naming the setting."""
        written = values.get(self.name, "").strip()
        if not written:
            return self.default
        value: T = self.kind(self.name, written)
        return value

    def text(self, values: Mapping[str, str]) -> str:
        """The setting as it is written in a mapping of texts; empty if it is absent."""
        return values.get(self.name, "").strip()

    @staticmethod
    def written(value: object) -> str:
        """A value as it is written in `.env`; empty for one that leaves the choice to the engine."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        return "" if value is None else str(value)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: Values, owner: type) -> T: ...

    def __get__(self, instance: Values | None, owner: type) -> Self | T:
        if instance is None:
            return self
        if self.secret:
            raise AttributeError(f"{self.name} is a secret: serve.secrets reads it, and settings do not hold it")
        return instance[self]

    def __set__(self, instance: Values, value: T) -> None:
        raise AttributeError(f"settings are immutable: {self.name} cannot be set")


class Values:
    """The typed values of all fields of a class, read from texts once."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Read `values` by name, secrets left out. Raises Refused, naming the first setting of the wrong kind."""
        self.typed: Mapping[str, Any] = MappingProxyType(
            {field.name: field.read(values) for field in type(self).fields() if not field.secret}
        )

    @classmethod
    def fields(cls) -> tuple[Field[Any], ...]:
        """All settings, in the order in which they are declared."""
        return tuple(value for value in vars(cls).values() if isinstance(value, Field))

    def __getitem__(self, field: Field[T]) -> T:
        """The value of a setting that is chosen at run time; a known one is an attribute."""
        value: T = self.typed[field.name]
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self.typed == other.typed

    def __hash__(self) -> int:
        return hash(tuple(self.typed.items()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.typed.items() if value not in (None, "", ()))
        return f"{type(self).__name__}({shown})"
