"""Results as JSON: the fields of a frozen dataclass are the properties, and their docstrings the descriptions.

A property of the class is in the document too if it is `shown`.

The schema comes from the same class (`dflash_deploy.schemas`). Commands start without pydantic, so this module gives it
only the methods that it looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from dflash_deploy.errors import Defect, DeployError, ExitCode

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Documented:
    """The base of each dataclass that is a JSON document or a part of one.

    A field with the default `None` is missing from the document while it is `None`. `Hidden` fields are never in it.
    """

    def document(self) -> dict[str, Any]:
        """What the command prints as `data` with `--json`. Secrets in its texts are not redacted yet."""
        return _written(self)


class Keywords:
    """What JSON Schema says about a value beside its type, such as `Keywords(minimum=0)`."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return handler(core) | self.keywords


class _Hidden:
    def __get_pydantic_core_schema__(self, source: object, handler: object) -> dict[str, object]:
        return {"type": "any"}

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, Any]:
        from pydantic_core import PydanticOmit  # noqa: PLC0415 - commands start without pydantic

        raise PydanticOmit


_HIDDEN = _Hidden()

# A field of the result that is not in the document: a secret, or what the command needs to show it.
Hidden = Annotated[T, _HIDDEN]


def shown(getter: F) -> F:
    """Put a property into the document, behind the fields: `@property`, `@shown`, and a getter with a docstring."""
    vars(getter)["shown"] = True
    return getter


def shown_of(kind: type[Any]) -> dict[str, Any]:
    """The getters of the shown properties of a class, by name."""
    every = ((name, one.fget) for base in kind.__mro__ for name, one in vars(base).items() if isinstance(one, property))
    return {name: getter for name, getter in every if "shown" in vars(getter)}


Count = Annotated[int, Keywords(minimum=0)]
Positive = Annotated[int, Keywords(minimum=1)]
Seconds = Annotated[float, Keywords(minimum=0)]
Milliseconds = Annotated[float, Keywords(minimum=0)]
Rate = Annotated[float, Keywords(minimum=0)]
Ratio = Annotated[float, Keywords(minimum=0)]
Share = Annotated[float, Keywords(minimum=0, maximum=1)]
AcceptanceLength = Annotated[float, Keywords(minimum=1)]
Fingerprint = Annotated[str, Keywords(pattern="^[0-9a-f]{8}$")]
FailureCode = Annotated[int, Keywords(enum=[int(code) for code in ExitCode if code])]
HttpStatus = Annotated[int, Keywords(minimum=100, maximum=599)]


def as_document(node: object) -> Any:
    """A result as JSON has it: dataclasses as objects, tuples as lists, paths and times (UTC) as texts."""
    if hasattr(node, "model_dump"):
        # an entry of the catalog
        node = node.model_dump(mode="json")
    match node:
        case _ if is_dataclass(node):
            return _written(node)
        case Mapping():
            return {str(key): as_document(value) for key, value in node.items()}
        case list() | tuple():
            return [as_document(value) for value in node]
        case Path():
            return str(node)
        case date():
            return f"{node:%Y-%m-%dT%H:%M:%SZ}" if isinstance(node, datetime) else node.isoformat()
    return node


def _written(node: Any) -> dict[str, Any]:
    kind: Any = type(node)
    return {
        name: as_document(value)
        for name, optional in _properties(kind)
        if (value := getattr(node, name)) is not None or not optional
    }


@cache
def _properties(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """The names of the fields and properties that are in the document, and whether each may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    kept = {name for name, hint in hints.items() if _HIDDEN not in getattr(hint, "__metadata__", ())}
    own = ((one.name, one.default is None) for one in fields(kind) if one.name in kept)
    return (*own, *((name, False) for name in shown_of(kind)))


@dataclass(frozen=True)
class CommandData:
    """The `data` of one command.

    `done` are the types of its results: one of them with status `ok`, and with `failed` if it failed with a result,
    such as a check that is not passed. `failed` are further types that only a failure has. `streams`: it has
    `--json-stream`.
    """

    done: tuple[type[Any], ...]
    failed: tuple[type[Any], ...] = ()
    streams: bool = False


SCHEMA = 1  # version of the document; a higher one means that a key has changed its meaning or is gone


def document(
    command: str, data: object, findings: Iterable[Documented] = (), failure: DeployError | None = None
) -> dict[str, object]:
    """The whole document of a command. Secrets in it are not redacted yet."""
    error = None
    if failure is not None:
        report = failure.report if isinstance(failure, Defect) else None
        error = CommandFailure(int(failure.exit_code), failure.message, failure.hint, report).document()
    return {
        "schema": SCHEMA,
        "command": command,
        "status": "failed" if failure else "ok",
        "data": as_document(data),
        "findings": as_document(list(findings)),
        "error": error,
    }


@dataclass(frozen=True)
class CommandFailure(Documented):
    """Why the command failed."""

    code: FailureCode
    """Exit code of the command, as in docs/reference/exit-codes.md."""
    message: str
    """What failed, with the value: one line. The text may change; use `code` to decide."""
    hint: str
    """What to do next."""
    report: str | None = None
    """Lines for an issue, without secrets. Only with code 1, an unexpected error."""


def redacted(node: object, redact: Callable[[str], str]) -> Any:
    """The same data, every text in it without secrets. JSON escapes some characters: redact before it is written."""
    if isinstance(node, Mapping):
        return {key: redacted(value, redact) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [redacted(value, redact) for value in node]
    return redact(node) if isinstance(node, str) else node
