"""What a log is explained as: the whole explanation, or only the id of the named failure."""

from collections.abc import Sequence
from functools import cache

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.diagnose import Explanation, LogReader, ProcessEnd

FAILURES = load_catalog().failures
# The release of each engine; without an engine the failures of all are searched.
RELEASES = {"vllm": "0.33.0", "sglang": "0.5.23", "llamacpp": "b11549", "": ""}

NOT_KNOWN = ProcessEnd()
FAILED = ProcessEnd(1)


def explained(
    log: Sequence[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> Explanation:
    return reader_of(engine).read(log, end, kernel)


@cache
def reader_of(engine: str) -> LogReader:
    return LogReader(FAILURES, engine, RELEASES[engine])


def named(
    log: Sequence[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> str | None:
    found = explained(log, end, engine, kernel).diagnosis
    return None if found is None else found.id
