"""Fuzz everything for some minutes, on two cores: `make fuzz`, `make fuzz SECONDS=600`.

    python -m tests.fuzz --seconds 120 [--page FILE] [--seed N]

Exit code 1 means findings. Their inputs are saved in .cache/fuzz; a fixed one belongs to tests/fuzz/corpus.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.report import Totals, collect, save, start

PATIENCE = 600  # seconds after the end that a process may need
COMMANDS = 0.3  # share of the time for real commands; atheris has the rest beside the readers
GUIDED = 7  # kinds of `coverage.KINDS`
FOUND = Path(".cache/fuzz")
BEGIN, END = "<!-- figures: make fuzz -->", "<!-- end of the figures -->"


def fuzz(seconds: float, number: int) -> Totals:
    """Run the readers beside the commands and atheris, and return their counts."""
    totals = Totals()
    with tempfile.TemporaryDirectory() as folder:
        current = Path(folder) / "current"
        readers = start(
            "worker", "--seconds", str(seconds), "--seed", str(number), "--inputs", "200", "--current", str(current)
        )
        commands = start("commands", "--seconds", str(seconds * COMMANDS), "--seed", str(number))
        collect(totals, commands, seconds + PATIENCE)
        each = seconds * (1 - COMMANDS) / GUIDED
        collect(totals, start("coverage", "--seconds", str(each), "--seed", str(number % 2**31)), seconds + PATIENCE)
        collect(totals, readers, seconds + PATIENCE, current)
    return totals


def write_page(page: Path, summary: str, table: str) -> None:
    """Replace the figures of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{summary}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Parse the arguments, fuzz, and show what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    totals = fuzz(asked.seconds, asked.seed)
    seconds = time.monotonic() - began
    print(totals.table())
    print(f"\nseed {asked.seed}. {totals.summary(seconds)}")
    for problem in totals.problems:
        print(f"problem: {problem}")
    for finding in totals.findings[:20]:
        print(f"{finding['kind']}: {finding['problem']}: {finding['said'].strip().splitlines()[-1][:300]}")
    save(totals.findings, FOUND)
    if asked.page:
        write_page(asked.page, totals.summary(seconds), totals.table())
    sys.exit(1 if totals.findings or totals.problems else 0)


if __name__ == "__main__":
    main()
