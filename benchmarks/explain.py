"""Seconds to read the log of an engine: 100 MB against 25 MB, so that the ratio shows whether the time is linear."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from dflash_deploy.operations import explain_log

REPEATS = 5
LARGE, SMALL = 100 * 10**6, 25 * 10**6

SERVES = (
    '(APIServer pid=1) INFO:     172.18.0.1:39264 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    "(EngineCore pid=274) INFO 08-03 17:45:53 [loggers.py:257] Engine 000: Avg prompt throughput: 123.4 tokens/s\n"
)
LIBRARIES = "a library says that step 12 of 345 has ended as expected, in a file of this name: /tmp/x/y/z.py\n"


def rows() -> Iterator[Row]:
    """A log of a server in use, and one of lines in no known format."""
    with tempfile.TemporaryDirectory() as folder:
        for what, text in (("a vLLM log", SERVES), ("lines in no format", LIBRARIES)):
            small, large = (_seconds(Path(folder) / "engine.log", text, size) for size in (SMALL, LARGE))
            yield Row(f"{what}: 25 MB, 100 MB", small, large, "s", "4: linear", REPEATS)


def _seconds(file: Path, text: str, size: int) -> float:
    file.write_text(text * (size // len(text)))
    taken = []
    for _ in range(REPEATS):
        begun = time.process_time()
        explain_log(file)
        taken.append(time.process_time() - begun)
    return median(taken)
