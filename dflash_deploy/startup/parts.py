"""Which part of the engine's own code raised the exception that ended it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_deploy.startup.evidence import LogEvidence, Raised

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure

_ENDS = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error)|WorkerProc failed to start"
    r"|Engine core initialization failed|[Rr]eceived sigquit from a child|SIGQUIT received\. signum"
)
"""What vLLM and SGLang write if an exception ends a process without which they cannot serve."""

SERVER = "APIServer"
"""vLLM's process that reads requests: while the engine serves, what it raises fails one of them."""

_FRAME = 'File "'

_ELSEWHERE = re.compile(
    r"^(?:[\w.]{0,120}\.)?(?:\w{0,40}(?:ImportError|OSError|IOError|ModuleNotFoundError|FileNotFoundError|NotFoundError"
    r"|PermissionError|ConnectionError|Timeout\w{0,10}|MemoryError|AcceleratorError|HTTP\w{0,20}Error))\b"
    r"|CUDA|CUDNN|CUBLAS|cuDNN|cuBLAS|NCCL|HIP |Triton Error|out of memory|driver"
)
"""Exceptions whose cause is outside the code that raised them: the installation, files, the network, the GPU.

A CUDA error is raised by any later call: its frame proves nothing.
"""


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
