"""Seconds to read the log of an engine: whether they grow with the log, and whether a pattern takes most of them."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, median

import yaml

from benchmarks.rows import Row
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.lines import LONGEST_LINE
from dflash_deploy.operations.explain import explain_log
from tools.diagnosis.score import BLIND_SETS, cases

REPEATS = 5
LARGE, SMALL = 100 * 10**6, 25 * 10**6

# A line of each failure; its beginning, repeated, is a line in which a pattern can begin at many places.
REAL_LINES = Path(__file__).parent.parent / "tests" / "unit" / "startup" / "failure_lines.yaml"

SERVES = (
    '(APIServer pid=1) INFO:     172.18.0.1:39264 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    "(EngineCore pid=274) INFO 08-03 17:45:53 [loggers.py:257] Engine 000: Avg prompt throughput: 123.4 tokens/s\n"
)
LIBRARIES = "a library says that step 12 of 345 has ended as expected, in a file of this name: /tmp/x/y/z.py\n"


def rows() -> Iterator[Row]:
    """A log of a server in use, one of lines in no known format, and lines that are made for the patterns."""
    with tempfile.TemporaryDirectory() as folder:
        for what, text in (("a vLLM log", SERVES), ("lines in no format", LIBRARIES)):
            small, large = (_seconds(Path(folder) / "engine.log", text, size) for size in (SMALL, LARGE))
            yield Row(f"{what}: 25 MB, 100 MB", small, large, "s", "4: linear", REPEATS)
    yield from _patterns()


def _patterns() -> Iterator[Row]:
    """Patterns on hostile lines: the slowest against all of them, the share of each against its share of real logs."""
    patterns = [failure.compiled for failure in load_catalog().failures if failure.pattern]
    rows = yaml.safe_load(REAL_LINES.read_text(encoding="utf-8"))
    texts = [row["text"].replace("\n", " ") for row in rows if row.get("text")]
    long = [(text[:-1] * LONGEST_LINE)[:LONGEST_LINE] for text in texts]
    taken = {pattern: _search_seconds(pattern, long) for pattern in patterns}
    slowest = max(taken, key=lambda pattern: taken[pattern])
    what = f"the slowest of {len(patterns)} patterns, {len(long)} hostile lines"
    yield Row(f"{what}: mean pattern, slowest", mean(taken.values()), taken[slowest], "s", "2", REPEATS)
    short = _search_seconds(slowest, [line[: LONGEST_LINE // 2] for line in long])
    yield Row(f"{what}: 1,000, 2,000 characters", short, taken[slowest], "s", "2: linear", REPEATS)
    real = _real_logs()
    ordinary = _shares({pattern: _search_seconds(pattern, real) for pattern in patterns})
    hostile = _shares(taken)
    slow = [pattern for pattern in patterns if hostile[pattern] * len(patterns) > 1]
    grown = max(slow, key=lambda pattern: hostile[pattern] / ordinary[pattern])
    what = f"the most growing share, of {len(slow)} patterns slower than the mean: healthy logs, hostile lines"
    yield Row(what, ordinary[grown], hostile[grown], "of 1", "2", REPEATS)


def _real_logs() -> list[str]:
    """Healthy logs of other people, as lines of the same length as the hostile ones."""
    text = " ".join(
        line for name in ("healthy", *BLIND_SETS) for case in cases(name) if not case.decisive for line in case.lines
    )
    return [text[at : at + LONGEST_LINE] for at in range(0, len(text) - LONGEST_LINE, LONGEST_LINE)]


def _shares(taken: Mapping[re.Pattern[str], float]) -> dict[re.Pattern[str], float]:
    """The part of the time of all patterns that each takes."""
    total = sum(taken.values())
    return {pattern: seconds / total for pattern, seconds in taken.items()}


def _search_seconds(pattern: re.Pattern[str], lines: list[str]) -> float:
    taken = []
    for _ in range(REPEATS):
        begun = time.process_time()
        for line in lines:
            pattern.search(line)
        taken.append(time.process_time() - begun)
    return median(taken)


def _seconds(file: Path, text: str, size: int) -> float:
    file.write_text(text * (size // len(text)))
    taken = []
    for _ in range(REPEATS):
        begun = time.process_time()
        explain_log(file)
        taken.append(time.process_time() - begun)
    return median(taken)
