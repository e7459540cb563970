"""One process that reads inputs and writes down what came of them, one JSON document a line.

    python -m tests.fuzz.worker --seed 1 --inputs 100 [--seconds 60] [--kind NAME]... [--output FILE]

It has at most 2 GiB of memory. It saves each input in the file `--current` before it reads it: a crash names its cause.
"""

import argparse
import faulthandler
import json
import resource
import shutil
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.judge import PATIENCE, Count, judge
from tests.fuzz.kind import Kind
from tests.fuzz.kinds import all_kinds
from tests.fuzz.places import place

MOST_MEMORY = 2 * 2**30

CORPUS = Path(__file__).parent / "corpus"  # inputs that once had an outcome that is not allowed: a folder for each kind


def replay(kind: Kind, count: Count) -> None:
    """Read the valid samples, and what was found before."""
    for content in (*kind.samples, *(file.read_bytes() for file in sorted((CORPUS / kind.folder).glob("*")))):
        judge(count, content, kind.read)


def generate(kind: Kind, count: Count, number: int, examples: int, current: Path | None = None) -> None:
    """Read `examples` inputs, which `number` decides; the same input is read once."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(kind.inputs)
    def one(content: bytes) -> None:
        if current is not None:
            current.write_bytes(content)
        judge(count, content, kind.read)

    one()


def rounds(kinds: list[Kind], number: int, examples: int, seconds: float, current: Path | None = None) -> list[Count]:
    """Read inputs of each kind in turn: one round, or as many as fit into `seconds`."""
    counts = [Count(kind.name) for kind in kinds]
    ends = time.monotonic() + seconds
    for kind, count in zip(kinds, counts, strict=True):
        replay(kind, count)
    while True:
        for kind, count in zip(kinds, counts, strict=True):
            generate(kind, count, number, examples, current)
            if seconds and time.monotonic() > ends:
                return counts
        number += 1
        if not seconds:
            return counts


def show(count: Count, **more: object) -> None:
    """Print a count and its findings, one JSON document a line."""
    print(json.dumps({**count.row(), "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **more}))
    for finding in count.findings:
        found = {"kind": finding.kind, "problem": finding.problem, "said": finding.said}
        print(json.dumps({**found, "content": finding.content.hex()}), flush=True)


def main() -> None:
    """Parse the arguments, read the inputs, and print the counts and the findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=100, help="of each kind, in one round")
    parser.add_argument("--seconds", type=float, default=0.0, help="more rounds, for so long")
    parser.add_argument("--current", type=Path)
    parser.add_argument("--kind", action="append", default=[])
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    # a hang in C, which no signal ends, ends the process
    faulthandler.enable()
    kinds = [kind for name, kind in all_kinds().items() if not asked.kind or name in asked.kind]
    began = time.process_time()
    counts = rounds(kinds, asked.seed, asked.inputs, asked.seconds, asked.current)
    for count in counts:
        show(count)
    print(f"{time.process_time() - began:.1f} s of CPU, at most {PATIENCE} s for one input", file=sys.stderr)
    shutil.rmtree(place(), ignore_errors=True)


if __name__ == "__main__":
    main()
