"""Why an engine did not become ready: known failures by fingerprint, unknown ones by the key lines of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING

from dflash_deploy.startup.collector import Collector
from dflash_deploy.startup.evidence import LogEvidence
from dflash_deploy.startup.log_lines import readable
from dflash_deploy.startup.log_summary import decisive_lines, searchable
from dflash_deploy.startup.parts import failed_part
from dflash_deploy.startup.ranks import Confidence, first, hits_of, ranks_of, searched

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure


@dataclass(frozen=True)
class ProcessEnd:
    """How the engine's process ended, if it did. A negative exit code is the signal that killed it.

    `restarts` counts the restarts by the runtime, such as Docker's restart policy. `ended`: it is known to have ended,
    even if nothing else is known.
    """

    exit_code: int | None = None
    out_of_memory: bool = False
    restarts: int = 0
    ended: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the process is known to have ended."""
        return self.ended or self.exit_code is not None or self.out_of_memory or self.restarts > 0

    def allows(self, failure: Failure) -> bool:
        """Whether the conditions of a fingerprint hold that concern the end and not the log."""
        if (failure.out_of_memory and not self.out_of_memory) or (failure.restarted and not self.restarts):
            return False
        if failure.request and self.is_known:
            return False
        return not failure.exit_codes or self.exit_code in failure.exit_codes

    def circumstances(self) -> tuple[str, ...]:
        """What is true of the end besides its cause."""
        said = []
        if self.restarts:
            said.append(f"the runtime restarted it {'once' if self.restarts == 1 else f'{self.restarts} times'}")
        if self.out_of_memory:
            said.append("the container reached its memory limit")
        code = self.exit_code or 0
        signal = -code if code < 0 else code - 128
        if 0 < signal < 32:
            said.append(f"signal {signal} ended it")
        return tuple(said)


@dataclass(frozen=True)
class Diagnosis:
    """A known failure. `fix`: settings that `up --fix` may write to fix it, as in the catalog.

    `part`: only the part of the engine is known that failed, and not why.
    """

    id: str
    cause: str
    do: str
    source: str
    evidence: tuple[str, ...]
    fix: Mapping[str, str] = field(default_factory=dict)
    part: bool = False

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
    """Why the engine failed: the diagnosis if the failure is known, and its evidence or the key lines of the log.

    `circumstances` are true besides the cause: that it restarts in a loop, or which signal ended it.
    """

    diagnosis: Diagnosis | None
    lines: tuple[str, ...]
    confidence: Confidence = "unknown"
    circumstances: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """The rows that concern an end, those that it allows, and those of requests only.

    `by_rank` are those that it allows: the specific ones, then the general ones.
    """

    concerned: Sequence[Failure]
    ends: Sequence[Failure]
    requests: Sequence[Failure]
    by_rank: tuple[Sequence[Failure], Sequence[Failure]]


@dataclass(frozen=True)
class LogReader:
    """Finds known failures in the logs of one engine. `failures` are the catalog's fingerprints, in order.

    With an empty `engine`, fingerprints of all engines are searched.
    """

    failures: Sequence[Failure]
    engine: str
    version: str

    def read(self, log: Iterable[str], ending: ProcessEnd = ProcessEnd(), kernel: Iterable[str] = ()) -> Explanation:
        """Explain a failed engine from its whole log, the end of its process and the kernel's log."""
        return self.explain(Collector().read(readable(log)), ending, kernel)

    def explain(
        self, collected: Collector, ending: ProcessEnd = ProcessEnd(), kernel: Iterable[str] = ()
    ) -> Explanation:
        """Explain a failed engine from a log that has been read."""
        evidence = collected.evidence()
        of_kernel = searchable((*evidence.kernel, *readable(kernel)))
        if any(searched(failure, of_kernel) for failure in self._faults):
            ending = replace(ending, ended=True)
        rows = self._rows(ending, loading=evidence.loading())
        self._mark_reports(evidence, rows.ends, rows.requests)
        unknown = bool(evidence.ending())

        @cache
        def explained(messages: tuple[str, ...]) -> bool:
            return first(rows.concerned, messages) is not None

        ranks = [rank for rank in ranks_of(evidence, explained) if not (unknown and rank.weaker)]
        for confidence, general in product(("named", "likely"), (False, True)):
            for rank in ranks:
                if rank.confidence != confidence or (matched := first(rows.by_rank[general], rank.messages)) is None:
                    continue
                if not general or all(map(explained, rank.beside)):
                    return self._named(matched, evidence, ending, confidence)
        rest = self._without_log(rows.ends, evidence, ending, of_kernel)
        if rest is not None:
            return self._named(rest, evidence, ending, "likely")
        if part := failed_part(rows.ends, evidence, ended=ending.is_known):
            known = self._filled(part.failure, part.found, (part.frame,))
            return Explanation(known, decisive_lines(evidence), "likely", ending.circumstances())
        return Explanation(None, decisive_lines(evidence), "unknown", ending.circumstances())

    def costs(self, log: Iterable[str]) -> tuple[Diagnosis, ...]:
        """Return known problems in a log that cost speed, memory or a feature without ending the engine."""
        return self.costs_of(Collector().read(readable(log)))

    def costs_of(self, collected: Collector) -> tuple[Diagnosis, ...]:
        """Return known problems that cost something in a log that has been read."""
        messages = searchable(tuple(collected.told))
        return tuple(found for cost in self._costs if (found := self._diagnosed(cost, messages)) is not None)

    @cached_property
    def _ends(self) -> list[Failure]:
        """The rows of this engine and release that end it."""
        return [failure for failure in self.failures if failure.effect == "ends" and self._concerns(failure)]

    @cached_property
    def _faults(self) -> list[Failure]:
        """The rows of the kernel's lines that an engine which works does not cause."""
        return [failure for failure in self._ends if failure.where == "kernel" and not failure.general]

    @cached_property
    def _chosen(self) -> dict[tuple[ProcessEnd, bool], _Rows]:
        return {}

    def _rows(self, ending: ProcessEnd, *, loading: bool) -> _Rows:
        """Return the rows for an end. They are kept for the next log: there are few kinds of ends."""
        if (ending, loading) not in self._chosen:
            concerned = [failure for failure in self._ends if not loading or failure.during != "steps"]
            ends = [failure for failure in concerned if ending.allows(failure)]
            requests = [failure for failure in concerned if failure.request and not ending.allows(failure)]
            specific, general = ([one for one in ends if one.general == general] for general in (False, True))
            self._chosen[ending, loading] = _Rows(concerned, ends, requests, (specific, general))
        return self._chosen[ending, loading]

    @cached_property
    def _costs(self) -> list[Failure]:
        """The rows of this engine and release that only cost something."""
        return [failure for failure in self.failures if failure.effect == "costs" and self._concerns(failure)]

    def _concerns(self, failure: Failure) -> bool:
        return not self.engine or failure.concerns(self.engine, self.version)

    def _mark_reports(self, evidence: LogEvidence, ends: Sequence[Failure], requests: Sequence[Failure]) -> None:
        """Mark the exceptions and errors of which a row says that they only report another failure, or fail a request.

        An error that tells the failure too, behind the report, is none.
        """
        echoes = [failure.compiled for failure in ends if failure.echo and failure.pattern]
        echoes += [failure.compiled for failure in requests]
        for one in evidence.raised:
            one.reported = any(pattern.search(line) for line in one.text for pattern in echoes)
        messages = searchable(tuple(evidence.errors))
        for message, shown in zip(evidence.errors, messages, strict=True):
            if any(pattern.search(shown) for pattern in echoes) and first(ends, (shown,)) is None:
                evidence.reported.add(message)

    def _without_log(
        self, ends: Sequence[Failure], evidence: LogEvidence, ending: ProcessEnd, kernel: Sequence[str]
    ) -> tuple[Failure, tuple[str, ...]] | None:
        """Return the failure that the kernel, the container, an echo, a hang or the exit code tells, in this order."""
        unknown = bool(evidence.ending())
        silent = not unknown and not evidence.fatal()
        failed = silent and (ending.is_known or not evidence.serves)
        for failure in ends:
            counts = failure.where == "kernel" and (failed or not failure.general)
            if counts and (hits := searched(failure, kernel)):
                return failure, hits
            if failure.out_of_memory and not failure.pattern:
                return failure, ()
        echoes = () if unknown or evidence.fatal() else (*evidence.echoes(), *evidence.plain)
        for failure in ends:
            if failure.echo and (hits := searched(failure, searchable(echoes))):
                return failure, hits
            if failure.last and not unknown and len(hits := searched(failure, evidence.end()[-2:])) > 1:
                return failure, hits
        for failure in ends if silent else ():
            if failure.exit_codes and not failure.pattern:
                return failure, ()
        return next(((failure, ()) for failure in ends if silent and failure.restarted and not failure.pattern), None)

    def _named(
        self,
        matched: tuple[Failure, tuple[str, ...]],
        evidence: LogEvidence,
        ending: ProcessEnd,
        confidence: Confidence,
    ) -> Explanation:
        failure, messages = matched
        found = self._diagnosed(failure, messages)
        if found is None:
            found = self._filled(failure, {}, ())
        return Explanation(found, found.evidence or decisive_lines(evidence), confidence, ending.circumstances())

    def _diagnosed(self, failure: Failure, messages: Sequence[str]) -> Diagnosis | None:
        """Return the diagnosis if a message matches, with the first few that do."""
        hits = list(hits_of(failure, messages)) if failure.pattern else []
        if not hits:
            return None
        found = {name: value.strip() for name, value in hits[0].groupdict(default="").items()}
        return self._filled(failure, found, tuple(hit.string for hit in hits))

    def _filled(self, failure: Failure, found: Mapping[str, str], evidence: tuple[str, ...]) -> Diagnosis:
        return Diagnosis(
            failure.id,
            _filled(failure.cause, found),
            _filled(failure.remedy(self.engine), found),
            failure.source,
            evidence,
            {name: _filled(value, found) for name, value in failure.fix.items()},
            bool(failure.part),
        )


def _filled(text: str, found: Mapping[str, str]) -> str:
    """Return `text` with its `{name}` placeholders replaced by the pattern's named groups."""
    for name, value in found.items():
        text = text.replace(f"{{{name}}}", value)
    return text
