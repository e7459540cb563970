"""The phases of a start: the lines that begin them, and the lines that say how far a phase is."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dflash_deploy.catalog.releases import EngineName
from dflash_deploy.catalog.schema import Entry


class PhaseMark(Entry):
    """What tells a phase in the lines that Compose or an engine writes. Without a phase it only counts."""

    phase: Annotated[str, Field(description="in words, as it is shown: `compiling`")] = ""
    by: Annotated[list[Literal["compose"] | EngineName], Field(min_length=1, description="whose lines they are")]
    begins: Annotated[str, Field(description="regular expression that is searched in a line")] = ""
    counts: Annotated[str, Field(description="regular expression with two groups: how many are done, of how many")] = ""
    once: Annotated[bool, Field(description="only a first start has this phase: its time predicts nothing")] = False
    source: Annotated[str, Field(description="where the lines were seen")]

    @field_validator("begins", "counts")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ValueError(f"no regular expression: {problem}") from None
        return pattern

    @model_validator(mode="after")
    def _tells_something(self) -> PhaseMark:
        if bool(self.phase) is not bool(self.begins):
            raise ValueError("a phase needs the lines that begin it, and lines that begin one need its name")
        if self.counts and re.compile(self.counts).groups != 2:
            raise ValueError("`counts` has two groups: how many are done, of how many")
        return self

    @cached_property
    def beginning(self) -> re.Pattern[str]:
        """The pattern of a line that begins the phase; it fits nothing where there is none."""
        return re.compile(self.begins or r"(?!)")

    @cached_property
    def counting(self) -> re.Pattern[str]:
        """The pattern of a line that says how far it is; it fits nothing where there is none."""
        return re.compile(self.counts or r"(?!)")
