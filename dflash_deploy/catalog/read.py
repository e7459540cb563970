"""Reads and validates one catalog file; errors name the file and the key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dflash_deploy.assets import read_yaml
from dflash_deploy.errors import CatalogRefused

T = TypeVar("T", bound=BaseModel)


def read_folder(folder: Traversable, kind: type[T]) -> Iterator[T]:
    """The entries of a folder's YAML files, sorted by file name. Raises CatalogRefused."""
    for file in sorted(
        (file for file in folder.iterdir() if file.name.endswith((".yaml", ".yml"))), key=lambda file: file.name
    ):
        yield read_entry(file, kind)


def read_entry(file: Traversable, kind: type[T]) -> T:
    """One entry. Raises CatalogRefused with the key and, if the key is unknown, the closest valid one."""
    try:
        return kind.model_validate(read_yaml(file.read_text(encoding="utf-8")))
    except ValidationError as problem:
        error = _telling(problem)
        raise CatalogRefused(f"{file}: {_said(error)}", hint=_hint(error, kind)) from None
    except OSError as problem:
        hint = "check that it is a file, and its permissions"
        raise CatalogRefused(f"{file} cannot be read: {problem.strerror}", hint=hint) from None
    except (yaml.YAMLError, ValueError) as problem:
        said = " ".join(str(problem).split())
        raise CatalogRefused(
            f"{file} is not valid YAML: {said}", hint="docs/catalog has an annotated example"
        ) from None


def _telling(problem: ValidationError) -> ErrorDetails:
    """The error to report: a misspelt key is also a missing key, and the misspelling is the one to fix."""
    errors = problem.errors()
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def _said(error: ErrorDetails) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {place}"
    return f"{place or 'the file'}: {error['msg']}"


def _hint(error: ErrorDetails, kind: type[BaseModel]) -> str:
    if error["type"] != "extra_forbidden":
        return "docs/catalog has an annotated example of each kind of file"
    known = sorted(_keys_at(kind, error["loc"][:-1]))
    near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"valid keys: {', '.join(known)}"


def _keys_at(kind: type[BaseModel], place: tuple[int | str, ...]) -> set[str]:
    """The valid keys at a place within an entry."""
    for step in place:
        field = kind.model_fields.get(str(step))
        if field is not None:
            kind = next(models_in(field.annotation), kind)
    return set(kind.model_fields)


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in a field's type: one, a list of them, or a mapping to them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)
