"""One setting as a typed attribute, and the kinds of settings: functions from a text to its typed value.

An attribute has the name in `.env`, the type, the unit, the default, and the engines that support it. Every error names
the variable.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar, overload

from dflash_deploy.serve.refusal import Refused

T = TypeVar("T")

# The templates in env-templates/: engines of one template share their settings.
VLLM, SGLANG, LLAMACPP = "vllm", "sglang", "llamacpp"

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


# Draft tokens by load: (first number of sequences in a step, last, draft tokens), rising, from 1 on.
Schedule = tuple[tuple[int, int, int], ...]

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")  # A host name or an IPv4 address, without scheme, port and path
# A host name (RFC 1123), also with the underscores of Compose's services.
_NAME = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?\Z", re.IGNORECASE)
# The origin of a web page, as browsers send it (RFC 6454).
_ORIGIN = re.compile(r"https?://(?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(:[1-9][0-9]{0,4})?")
_RANGE = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?:([0-9]{1,3})", re.ASCII)
_DOCKER_SIZE = re.compile(r"\d+(\.\d+)?\s*[kmgKMG]?[bB]?")
_LARGEST = 1e9  # larger than any number of tokens, sequences or GiB
ANY_ORIGIN = "*"  # the word for pages of all origins
DOMAIN_HINT = "write the host only, such as llm.example.com, box.internal or 192.168.1.5"


def set_to(name: str, value: object) -> str:
    """The command that changes a setting, for a hint; an empty value restores the default."""
    return f"`dflash-deploy set {name}={value}`"


def text(name: str, value: str) -> str:
    """Any text."""
    return value


def path(name: str, value: str) -> str:
    """A path without `$`."""
    # the programs that read `.env` disagree about it
    if "$" in value:
        raise Refused(f"{name}={value} has a $", hint=f"write {name} without variables, such as ~/models")
    return value


def words(name: str, value: str) -> tuple[str, ...]:
    """Words separated by white space."""
    return tuple(value.split())


def whole(name: str, value: str) -> int:
    """A whole number from 0 on."""
    # Python refuses to convert thousands of digits
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise Refused(
            f"{name}={value} is not a positive whole number",
            hint=f"write digits, or {set_to(name, '')}",
        )
    return int(value)


def positive(name: str, value: str) -> int:
    """A whole number from 1 on."""
    number = whole(name, value)
    if number == 0:
        raise Refused(f"{name}=0 is not a positive whole number", hint=f"write digits, or {set_to(name, '')}")
    return number


UNITS = {"k": 1000, "K": 1024}


def tokens(name: str, value: str) -> int:
    """A whole number from 1 on; as for the engines, 64k is 64,000 and 64K is 65,536."""
    digits = value.rstrip("kK") if value[-1:] in UNITS and value[:-1].isdigit() else value
    return positive(name, digits) * (1 if digits == value else UNITS[value[-1]])


def at_most(largest: int) -> Callable[[str, str], int]:
    """A positive integer up to `largest`."""

    def read(name: str, value: str) -> int:
        number = positive(name, value)
        if number > largest:
            raise Refused(f"{name}={value} is too large (1-{largest})", hint="such as " + set_to(name, largest))
        return number

    return read


def port(name: str, value: str) -> int:
    """A TCP port."""
    number = positive(name, value)
    if number > 65535:
        raise Refused(f"{name}={value} is not a valid port (1-65535)", hint="such as " + set_to(name, "8000"))
    return number


def address(name: str, value: str) -> str:
    """An IP address, or a host name."""
    if not is_host(value):
        raise Refused(f"{name}={value} is not a valid address", hint="such as " + set_to(name, "127.0.0.1"))
    return value


def domain(name: str, value: str) -> str:
    """A domain name in lower case, or an IP address in its shortest form, which clients send as the host."""
    host = domain_in(value)
    if host is None:
        raise Refused(f"{name}: `{value}` is not a valid domain name or IP address", hint=DOMAIN_HINT)
    return host


def domain_in(text: str) -> str | None:
    """The host that a text names: a domain name, or an IP address that clients can connect to; `None` without one."""
    host = text.lower().removesuffix(".")
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        # resolvers read 10.1 as 10.0.0.1
        numbers = all(part.isdigit() for part in host.split("."))
        return host if host.isascii() and "_" not in host and _NAME.match(host) and not numbers else None
    unreachable = number.is_unspecified or number.is_multicast or getattr(number, "scope_id", None)
    return None if unreachable else str(number)


def is_host(text: str) -> bool:
    """Whether a text is an IP address or a host name, in the form that a URL can have."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _NAME.match(text) is not None
    return True


def fraction(name: str, value: str) -> float:
    """A number above 0, at most 1."""
    number = _number(value)
    if number is None or not 0.0 < number <= 1.0:
        raise Refused(f"{name}={value} is not a fraction above 0 and up to 1", hint="such as " + set_to(name, "0.85"))
    return number


def amount(name: str, value: str) -> float:
    """A number above 0."""
    number = _number(value)
    if number is None or not 0 < number < _LARGEST:
        raise Refused(f"{name}={value} is not a positive number", hint=f"write a number, or {set_to(name, '')}")
    return number


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def switch(name: str, value: str) -> bool:
    """on or off, in any spelling."""
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise Refused(f"{name}={value} is neither on nor off", hint=f"{set_to(name, 'on')} or {set_to(name, 'off')}")


def one_of(*allowed: str) -> Callable[[str, str], str]:
    """One of a few words."""

    def read(name: str, value: str) -> str:
        if value not in allowed:
            raise Refused(
                f"{name}={value} is not one of {', '.join(allowed)}",
                hint="such as " + set_to(name, allowed[0]),
            )
        return value

    return read


def arguments(name: str, value: str) -> tuple[str, ...]:
    """Words as a shell splits them, so that JSON with spaces can be in single quotes."""
    try:
        return tuple(shlex.split(value))
    except ValueError as problem:
        raise Refused(f"{name} cannot be split into words: {problem}", hint="close the quotes") from None


def inner_path(name: str, value: str) -> str:
    """A file below the directory of the weights."""
    if value.startswith("/") or ".." in value.split("/"):
        raise Refused(f"{name}={value} is outside the weights' directory", hint="name a file below it")
    return path(name, value)


def quantization(name: str, value: str) -> str:
    """A quantization method. `auto` and `none` mean no flag: the engine reads the checkpoint's own config.json."""
    return "" if value in {"auto", "none"} else value


def hosts(name: str, value: str) -> tuple[str, ...]:
    """Host names in lower case, as vLLM compares them with the whole host of a URL."""
    names = tuple(value.lower().replace(",", " ").split())
    for host in names:
        if not _HOST.fullmatch(host):
            raise Refused(f"{name}={host} is not a host name", hint="write images.example.com, without https://")
    return names


def origins(name: str, value: str) -> tuple[str, ...]:
    """Origins of web pages, such as `https://chat.example.com`; `*` for every page."""
    found = tuple(value.lower().replace(",", " ").split())
    for one in found:
        if one != ANY_ORIGIN and not _ORIGIN.fullmatch(one):
            hint = f"write {name}=https://chat.example.com, without a path, or * for every page"
            raise Refused(f"{name}: `{one}` is not a valid origin", hint=hint)
    return found


def docker_size(name: str, value: str) -> str:
    """A size in Docker's format."""
    if not _DOCKER_SIZE.fullmatch(value):
        raise Refused(f"{name}={value} is not a size in Docker's format", hint="write a number and a unit, such as 16g")
    return value


def schedule(name: str, value: str) -> Schedule:
    """`1-2:7,3-8:3`: 7 draft tokens each with up to 2 sequences in a step, 3 with more."""
    ranges = [_RANGE.fullmatch(part.strip()) for part in value.split(",")]
    read = tuple((int(one[1]), int(one[2] or one[1]), int(one[3])) for one in ranges if one is not None)
    starts = (1, *(last + 1 for _, last, _ in read[:-1]))
    sound = len(read) == len(ranges) and all(
        first == start and first <= last for start, (first, last, _) in zip(starts, read, strict=True)
    )
    if not sound:
        raise Refused(
            f"{name}={value} is not a schedule",
            hint="write SEQUENCES:DRAFT_TOKENS, from 1 on and without gaps, such as 1-2:7,3-8:3",
        )
    return read
