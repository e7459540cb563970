"""Why an engine did not become ready: known failures by fingerprint, unknown ones by the key lines of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from dflash_deploy.startup.log_summary import LONGEST_LINE, distinct_messages, key_lines, searchable

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure

EVIDENCE_LINES = 3

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class ProcessEnd:
    """How the engine's process ended, if it did. A negative exit code is the signal that killed it.

    `restarts` counts the restarts by the runtime, such as Docker's restart policy.
    """

    exit_code: int | None = None
    out_of_memory: bool = False
    restarts: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """A known failure. `fix`: settings that `up --fix` may write to fix it, as in the catalog."""

    id: str
    cause: str
    do: str
    source: str
    evidence: tuple[str, ...]
    fix: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """Return the fields for `--json`."""
        return {
            "id": self.id,
            "cause": self.cause,
            "do": self.do,
            "source": self.source,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True)
class Explanation:
    """Why the engine failed: the diagnosis if the failure is known, and its evidence or the key lines of the log."""

    diagnosis: Diagnosis | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class LogReader:
    """Finds known failures in the logs of one engine. `failures` are the catalog's fingerprints, in order."""

    failures: Sequence[Failure]
    engine: str
    version: str

    def read(self, log: Iterable[str], ending: ProcessEnd = ProcessEnd(), kernel: Iterable[str] = ()) -> Explanation:
        """Explain a failed engine from its whole log, the end of its process and the kernel's log."""
        lines = readable(log)
        found = next(self._known(lines, ending, readable(kernel), "ends"), None)
        return Explanation(found, found.evidence if found and found.evidence else key_lines(lines))

    def costs(self, log: Iterable[str]) -> tuple[Diagnosis, ...]:
        """Return known problems in a log that cost speed, memory or a feature without ending the engine."""
        return tuple(self._known(readable(log), ProcessEnd(), (), "costs"))

    def _known(
        self, log: Sequence[str], ending: ProcessEnd, kernel: Sequence[str], effect: Literal["ends", "costs"]
    ) -> Iterator[Diagnosis]:
        places = {"log": searchable(distinct_messages(log)), "kernel": searchable(kernel)}
        for failure in self.failures:
            if failure.effect == effect and failure.concerns(self.engine, self.version):
                found = _diagnosed(failure, places[failure.where], ending)
                if found is not None:
                    yield found


def readable(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines without colors, cut to LONGEST_LINE characters so that searches stay fast."""
    return tuple(_COLOUR.sub("", line)[:LONGEST_LINE] for text in lines for line in text.splitlines())


def _diagnosed(failure: Failure, messages: Sequence[str], ending: ProcessEnd) -> Diagnosis | None:
    """Return the diagnosis if every condition of the fingerprint holds."""
    if (failure.out_of_memory and not ending.out_of_memory) or (failure.restarted and not ending.restarts):
        return None
    if failure.exit_codes and ending.exit_code not in failure.exit_codes:
        return None
    hits = list(_hits(failure, messages)) if failure.pattern else []
    if failure.pattern and not hits:
        return None
    found = {name: value.strip() for name, value in hits[0].groupdict(default="").items()} if hits else {}
    return Diagnosis(
        failure.id,
        _filled(failure.cause, found),
        _filled(failure.do, found),
        failure.source,
        tuple(hit.string for hit in hits),
        {name: _filled(value, found) for name, value in failure.fix.items()},
    )


def _hits(failure: Failure, messages: Sequence[str]) -> Iterator[re.Match[str]]:
    """Return the first few messages that match the pattern."""
    return islice(filter(None, map(failure.compiled.search, messages)), EVIDENCE_LINES)


def _filled(text: str, found: Mapping[str, str]) -> str:
    """Return `text` with its `{name}` placeholders replaced by the pattern's named groups."""
    for name, value in found.items():
        text = text.replace(f"{{{name}}}", value)
    return text
