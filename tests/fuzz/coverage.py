"""Coverage-guided inputs for the parsers, made by atheris (libFuzzer). Its wheels are for Linux on x86-64 only.

    python -m tests.fuzz.coverage --seconds 60 ['.env' ...]

Each kind gets `--seconds`, and at least LEAST inputs, in a process of its own, which prints its count and its findings
as JSON documents.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dflash_deploy", "dotenv", "yaml"]):
    from tests.fuzz.judge import Count, judge
    from tests.fuzz.kind import Kind
    from tests.fuzz.kinds import all_kinds
    from tests.fuzz.places import place

from tests.fuzz.worker import CORPUS, MOST_MEMORY, show

# Parsers of bytes; the other kinds are JSON, whose parser is pydantic's, or read by the same code.
KINDS = (
    *(".env", "dflash.lock", "GGUF header", "safetensors header", "event stream"),
    *("catalog profile", "catalog failures"),
)

LEAST = 20  # inputs of each kind, also on a machine that needs longer for them than its time
LONGEST_INPUT = 20_000  # bytes


def fuzz(kind: Kind, seconds: float, number: int) -> None:
    """Read inputs of one kind, at least LEAST, until the time is over, print the count, and end the process."""
    count, ends, runs = Count(kind.name), time.monotonic() + seconds, [0]
    place.cache_clear()
    seeds = Path(tempfile.mkdtemp(dir=place()))
    for sample, content in enumerate(kind.samples):
        (seeds / f"sample-{sample}").write_bytes(content)

    def one(content: bytes) -> None:
        if time.monotonic() > ends and runs[0] >= LEAST:
            # libFuzzer leaves with _exit, so that nothing could be printed after it
            show(count, runs=runs[0])
            shutil.rmtree(place(), ignore_errors=True)
            sys.stdout.flush()
            os._exit(0)
        runs[0] += 1
        judge(count, content, kind.parse or kind.read)

    options = [f"-seed={number}", f"-max_len={LONGEST_INPUT}", "-verbosity=0", f"-artifact_prefix={place()}/"]
    # judge() counts hangs and memory; libFuzzer's own limits end the process
    options += ["-timeout=120", "-rss_limit_mb=0"]
    folders = [seeds, *([CORPUS / kind.folder] if (CORPUS / kind.folder).is_dir() else [])]
    atheris.Setup([sys.argv[0], *options, *map(str, folders)], one)
    atheris.Fuzz()


def main() -> None:
    """Fuzz each kind in a child process: libFuzzer runs once in a process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    kinds, worst = all_kinds(), 0
    for name in asked.kinds:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            fuzz(kinds[name], asked.seconds, asked.seed)
        worst = max(worst, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), key=abs)
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
