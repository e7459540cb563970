"""What the documents of several commands share: findings, errors, checks, and the kinds of numbers."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from dflash_deploy.checks.check import CheckStatus
from dflash_deploy.errors import ExitCode

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
AcceptanceLength = Annotated[float, Field(ge=1)]
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


class CheckData(DocumentedDict):
    """One check of `test`."""

    name: str
    """Name of the check, as in docs/reference/checks.md and for `--only`."""
    status: CheckStatus
    """Its result. `skipped`: it cannot tell right from wrong here; `got` says why."""
    seconds: Seconds
    """Duration of the check in seconds."""
    asked: str
    """What was requested."""
    got: str
    """What came back, or why the check was skipped or not run."""
    hint: str
    """What to do if it failed; empty otherwise."""
