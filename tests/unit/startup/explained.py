"""What a log is explained as: the whole explanation, or only the id of the named failure."""

from dflash_deploy.catalog import load_catalog
from dflash_deploy.startup import Explanation, LogReader, ProcessEnd

FAILURES = load_catalog().failures

NOT_KNOWN = ProcessEnd()


def explained(
    log: list[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> Explanation:
    return LogReader(FAILURES, engine, "b11549" if engine == "llamacpp" else "0.33.0").read(log, end, kernel)


def named(
    log: list[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> str | None:
    found = explained(log, end, engine, kernel).diagnosis
    return None if found is None else found.id
