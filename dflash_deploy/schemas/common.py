"""What the documents of several commands share: their base."""

from __future__ import annotations

from pydantic import ConfigDict
from typing_extensions import TypedDict


class DocumentedDict(TypedDict):
    """The base of all types of `data`: the docstring of a property is its description in the schema."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # type: ignore[misc]
