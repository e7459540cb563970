"""Why an engine did not become ready: a known failure, the part of the engine that raised it, or its key lines.

Fingerprints find known failures in the messages of a log, the best evidence first. An exception that no row explains
makes later evidence weaker. An unknown exception that ended the engine is attributed to the part of the engine's own
code that raised it. Any other unknown failure has only the key lines of the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice, product, takewhile
from typing import TYPE_CHECKING, Literal

from dflash_deploy.diagnosis.collect import Collector
from dflash_deploy.diagnosis.evidence import LogEvidence, Raised, decisive_lines, frames, searchable, texts
from dflash_deploy.diagnosis.lines import readable
from dflash_deploy.document import Documented, Hidden

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure


# What vLLM and SGLang write if an exception ends a process without which they cannot serve.
_ENDS = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error)|WorkerProc failed to start"
    r"|Engine core initialization failed|[Rr]eceived sigquit from a child|SIGQUIT received\. signum"
)

SERVER = "APIServer"  # vLLM's process that reads requests: while the engine serves, what it raises fails one of them
_FRAME = 'File "'

# Exceptions whose cause is outside the code that raised them: the installation, files, the network, the GPU.
#
# A CUDA error is raised by any later call: its frame proves nothing.
_ELSEWHERE = re.compile(
    r"^(?:[\w.]{0,120}\.)?(?:\w{0,40}(?:ImportError|OSError|IOError|ModuleNotFoundError|FileNotFoundError|NotFoundError"
    r"|PermissionError|ConnectionError|Timeout\w{0,10}|MemoryError|AcceleratorError|HTTP\w{0,20}Error))\b"
    r"|CUDA|CUDNN|CUBLAS|cuDNN|cuBLAS|NCCL|HIP |Triton Error|out of memory|driver"
)


@dataclass(frozen=True)
class FailedPart:
    """The row of a part of the engine, what replaces its places, and the frame that raised the exception."""

    failure: Failure
    found: Mapping[str, str]
    frame: str


def failed_part(failures: Iterable[Failure], evidence: LogEvidence, *, ended: bool) -> FailedPart | None:
    """Return the part whose code raised the exception that ended the engine; `ended`: its process is known to have.

    All processes must have failed in the same part. An exception of a request, or one that its process survived, did
    not end the engine.
    """
    rows = [failure for failure in failures if failure.part]
    parts = [_part(rows, one) for one in _ended_by(evidence, ended=ended)]
    first, *others = parts or [None]
    if first is None or any(other is None or other.failure.id != first.failure.id for other in others):
        return None
    return first


def _ended_by(evidence: LogEvidence, *, ended: bool) -> list[Raised]:
    """Return the exceptions that ended the engine, if the log shows that they did."""
    told = any(_ENDS.search(message) for message in (*evidence.errors, *evidence.echoes()))
    if evidence.serves:
        return [one for one in evidence.ending() if told and not one.process.startswith(SERVER)]
    return evidence.ending() if told or (ended and not evidence.survived) else []


def _part(rows: Sequence[Failure], raised: Raised) -> FailedPart | None:
    """Return the row of the frame that raised an exception."""
    frame = _frame(raised)
    if not frame or raised.collateral or _ELSEWHERE.search(raised.text[0]):
        return None
    kind = raised.text[0].partition(":")[0].rpartition(".")[2]
    for row in rows:
        if found := row.compiled.search(frame):
            return FailedPart(row, {**found.groupdict(default=""), "exception": kind}, frame)
    return None


def _frame(raised: Raised) -> str:
    """Return the frame that raised an exception; empty if it is missing: two lines of code follow the last frame."""
    lines = [line.strip() for line in raised.frame]
    places = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    return lines[places[-1]] if places and len(lines) - places[-1] <= 2 else ""


EVIDENCE_LINES = 3

# `named`: what ended the engine says so; `likely`: only its cause, an echo, a hang, the exit code or a frame does.
Confidence = Literal["named", "likely", "unknown"]

Explained = Callable[[tuple[str, ...]], bool]  # whether a row explains messages

# What Docker and llama.cpp write around an error that another line tells.
_WRAPS = re.compile(
    r"OCI runtime create failed|failed to create (?:task for container|shim task)"
    r"|ggml-cuda\.cu:\d{1,6}: CUDA error$|^ggml_cuda_compute_forward: \w{1,40} failed$|: invalid logits id "
)

# Exceptions for a kernel that failed, whose assertion native code prints before them.
_OF_GPU = re.compile(r"CUDA|cuda|Accelerator|HIP|Triton|device-side")


@dataclass(frozen=True)
class Rank:
    """Messages that are equally good evidence. `weaker`: speaks only if no unknown exception ended the engine.

    `beside`: exceptions or errors; if no row explains one of them, a general row does not speak.
    """

    messages: tuple[str, ...]
    confidence: Confidence = "named"
    weaker: bool = False
    beside: tuple[tuple[str, ...], ...] = ()


def ranks_of(evidence: LogEvidence, explained: Explained) -> Iterator[Rank]:
    """Yield the messages of a log, the best evidence first.

    What is raised after an exception that is not explained may be its consequence.
    """
    raised, causes = evidence.ending(), evidence.causes()
    # what the API server raised may concern a request
    parts = [one for one in raised if not one.process.startswith(SERVER)] if len(raised) > 1 else []
    strange = next((one for one in parts if not _is_explained(explained, one, causes)), None)
    ending = raised if strange is None else list(takewhile(lambda one: one is not strange, raised))
    own = tuple((*texts((one,)), *one.frame) for one in parts or raised)
    sure: Confidence = "named" if strange is None else "likely"
    native = evidence.native() if any(_OF_GPU.search(line) for line in texts(ending)) else ()
    network = evidence.of_nccl() if any("nccl" in line.lower() for line in texts(ending)) else ()
    yield Rank(_once(*texts(ending), *native, *network), sure, beside=own)
    yield Rank(_once(*frames(ending)), sure, beside=own)
    if strange is None:
        sure = "named" if not causes or all(map(explained, own)) else "likely"
        yield Rank(_once(*texts(causes)), sure, beside=own)
        yield Rank(_once(*frames(causes)), sure, beside=own)
    fatal = evidence.fatal()
    yield Rank(_once(*fatal), weaker=True, beside=tuple((message,) for message in fatal if not _WRAPS.search(message)))
    yield Rank(_once(*texts(evidence.logged())), "likely", weaker=True)
    yield Rank(_once(*frames(evidence.logged())), "likely", weaker=True)
    yield Rank(_once(*evidence.plain), "likely", weaker=True)
    yield Rank(_once(*evidence.echoes()), "likely", weaker=True)


def first(failures: Iterable[Failure], messages: Sequence[str]) -> tuple[Failure, tuple[str, ...]] | None:
    """Return the most specific failure that messages tell, and those: the catalog has the specific ones first."""
    shown = searchable(messages)
    for failure in failures if shown else ():
        if failure.names_an_end and (hits := searched(failure, shown)):
            return failure, hits
    return None


def searched(failure: Failure, messages: Sequence[str]) -> tuple[str, ...]:
    """Return the first few messages that match the pattern of a row."""
    search = failure.compiled.search
    for message in messages:
        if search(message):
            return tuple(hit.string for hit in hits_of(failure, messages))
    # nearly every row: no message matches
    return ()


def hits_of(failure: Failure, messages: Sequence[str]) -> Iterator[re.Match[str]]:
    """Yield how the first few messages match the pattern of a row."""
    return islice(filter(None, map(failure.compiled.search, messages)), EVIDENCE_LINES)


def _is_explained(explained: Explained, one: Raised, causes: Sequence[Raised]) -> bool:
    """Whether a row explains an exception, or what the same process raised before it as a cause."""
    own = (cause for cause in causes if cause.process == one.process)
    return explained((*texts((one, *own)), *one.frame))


def _once(*messages: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(messages))


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
class Diagnosis(Documented):
    """A known failure, found in a log."""

    id: str
    """Id, as in docs/reference/failures.md."""
    cause: str
    """The cause."""
    do: str
    """What to do."""
    source: str
    """Where the failure is documented."""
    evidence: tuple[str, ...]
    """Lines of the log that show it."""
    fix: Hidden[Mapping[str, str]] = field(default_factory=dict)
    """Settings that `up --fix` may write to fix it, as in the catalog."""
    part: Hidden[bool] = False
    """Only the part of the engine is known that failed, and not why."""


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
