"""What lines of a log say: which engine wrote them, in which release, and which phase of a start they begin."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dflash_deploy.catalog.read import Entry
from dflash_deploy.catalog.releases import EngineName


class LogSign(Entry):
    """How the logs of one engine are recognised."""

    engine: EngineName
    wrote: Annotated[str, Field(min_length=3, description="regular expression of lines that only this engine writes")]
    mentions: Annotated[
        str, Field(description="regular expression of lines that count if no engine is recognised by `wrote`")
    ] = "(?!)"
    release: Annotated[str, Field(min_length=3, description="regular expression whose first group is the release")]
    prefix: Annotated[str, Field(description="what a release begins with and the log leaves out")] = ""
    source: str

    @cached_property
    def writes(self) -> re.Pattern[str]:
        """The pattern of lines that only this engine writes."""
        return re.compile(self.wrote)

    @cached_property
    def mentioned(self) -> re.Pattern[str]:
        """The pattern of lines that another engine may write, too."""
        return re.compile(self.mentions)

    @cached_property
    def releases(self) -> re.Pattern[str]:
        """The pattern of a line that names the release."""
        return re.compile(self.release)


class PhaseMark(Entry):
    """Regular expressions for the lines of a phase. A mark without a phase only reports progress."""

    phase: Annotated[str, Field(description="name of the phase, as it is shown: `compiling`")] = ""
    by: Annotated[list[Literal["compose"] | EngineName], Field(min_length=1, description="who writes the lines")]
    begins: Annotated[str, Field(description="regular expression, searched in a line, that begins the phase")] = ""
    counts: Annotated[str, Field(description="regular expression with two groups: number done, and total")] = ""
    once: Annotated[bool, Field(description="only a first start has this phase; its duration predicts nothing")] = False
    source: Annotated[str, Field(description="source of the lines")]

    @field_validator("begins", "counts")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ValueError(f"not a valid regular expression: {problem}") from None
        return pattern

    @model_validator(mode="after")
    def _tells_something(self) -> PhaseMark:
        if bool(self.phase) is not bool(self.begins):
            raise ValueError("`phase` and `begins` belong together: set both or neither")
        if self.counts and re.compile(self.counts).groups != 2:
            raise ValueError("`counts` must have two groups: number done, and total")
        return self

    @cached_property
    def beginning(self) -> re.Pattern[str]:
        """The pattern of a line that begins the phase. Without `begins` it matches nothing."""
        return re.compile(self.begins or r"(?!)")

    @cached_property
    def counting(self) -> re.Pattern[str]:
        """The pattern of a line that reports progress. Without `counts` it matches nothing."""
        return re.compile(self.counts or r"(?!)")
