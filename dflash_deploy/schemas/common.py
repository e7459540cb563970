"""What the documents of several commands share: their base, and errors."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from dflash_deploy.errors import ExitCode

FailureCode = Annotated[int, Field(json_schema_extra={"enum": [int(code) for code in ExitCode if code]})]


class DocumentedDict(TypedDict):
    """The base of all types of `data`: the docstring of a property is its description in the schema."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # type: ignore[misc]


class ErrorData(DocumentedDict):
    """Why the command failed."""

    code: FailureCode
    """Exit code of the command, as in docs/reference/exit-codes.md."""
    message: str
    """What failed, with the value: one line. The text may change; use `code` to decide."""
    hint: str
    """What to do next."""
    report: NotRequired[str]
    """Lines for an issue, without secrets. Only with code 1, an unexpected error."""
