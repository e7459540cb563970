"""The `data` of `explain`."""

from __future__ import annotations

from typing import Literal

from dflash_deploy.schemas.common import Count, DocumentedDict


class KnownFailureData(DocumentedDict):
    """A known failure, found in a log."""

    id: str
    """Id, as in docs/reference/failures.md."""
    cause: str
    """The cause."""
    do: str
    """What to do."""
    source: str
    """Where the failure is documented."""
    evidence: list[str]
    """Lines of the log that show it."""


class ExplainData(DocumentedDict):
    """What the log of an engine says, without secrets."""

    engine: str | None
    """Name of the engine; null if neither `--engine` nor a line of the log names it."""
    release: str | None
    """Release of the engine; null if neither `--engine` nor a line of the log names it."""
    verdict: Literal["named", "likely", "unknown", "none"]
    """How sure the cause is. `none`: the log shows no failure."""
    failure: KnownFailureData | None
    """The cause; null if it is unknown, or without a failure."""
    lines: list[str]
    """The decisive lines of the log; empty if the log shows no failure."""
    circumstances: list[str]
    """What is true besides the cause, in words. The text may change."""
    costs: list[KnownFailureData]
    """Known problems that cost speed, memory or a feature without ending the engine."""
    not_known: list[str]
    """What the log does not say and would help, in words. The text may change."""
    lines_read: Count
    """Lines that were read."""
