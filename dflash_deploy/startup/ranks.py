"""What of a log may name the cause, by rank, and what of it no row explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Literal

from dflash_deploy.startup.evidence import LogEvidence, Raised, frames, texts
from dflash_deploy.startup.log_summary import searchable
from dflash_deploy.startup.parts import SERVER

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure

EVIDENCE_LINES = 3

Confidence = Literal["named", "likely", "unknown"]
"""`named`: what ended the engine says so; `likely`: only its cause, an echo, a hang, the exit code or a frame does."""

Explained = Callable[[tuple[str, ...]], bool]
"""Whether a row explains messages."""

_WRAPS = re.compile(
    r"OCI runtime create failed|failed to create (?:task for container|shim task)"
    r"|ggml-cuda\.cu:\d{1,6}: CUDA error$|^ggml_cuda_compute_forward: \w{1,40} failed$|: invalid logits id "
)
"""What Docker and llama.cpp write around an error that another line tells."""

_OF_GPU = re.compile(r"CUDA|cuda|Accelerator|HIP|Triton|device-side")
"""Exceptions for a kernel that failed, whose assertion native code prints before them."""


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
    yield Rank(_once(*texts(ending), *native), sure, beside=own)
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
