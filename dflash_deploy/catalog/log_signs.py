"""Which engine, in which release, wrote a log: patterns of what only that engine writes."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated

from pydantic import Field

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
