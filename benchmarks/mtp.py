"""DFlash, the target's MTP head and no speculative decoding in one run of `bench`, with the tiny models."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tests.support.cli import dflash
from tests.support.ports import free_port

CONCURRENCIES = (1, 2, 4, 8)
DRAFT_TOKENS = 3  # of the MTP head: as many as it is trained on
REPEATS = 5
REQUESTS = 16


def table() -> Table:
    """A row for each concurrency: medians of tokens/s; and the acceptance by position, of all concurrencies."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        try:
            dflash("up", at=directory, timeout=900).succeeded()
            size = ("--requests", str(REQUESTS), "--repeats", str(REPEATS))
            asked = (
                "--baseline",
                "--mtp",
                str(DRAFT_TOKENS),
                "--concurrency",
                ",".join(map(str, CONCURRENCIES)),
                *size,
            )
            data = dflash("bench", "--json", *asked, at=directory, timeout=3600).succeeded().document["data"]
        finally:
            dflash("down", at=directory)
    return _drawn(data["rows"])


def _drawn(rows: list[Mapping[str, Any]]) -> Table:
    drawn = Table(
        *("concurrency", "none", "MTP", "DFlash", "MTP / none", "DFlash / none", "MTP length", "DFlash length"),
        title=f"mtp, medians of {REPEATS}, tokens/s",
        box=box.SIMPLE_HEAD,
    )
    for concurrency in CONCURRENCIES:
        here = [row for row in rows if row["concurrency"] == concurrency]
        plain = next(row for row in here if not row["drafter"])
        head = next(row for row in here if row["mtp"])
        drafter = next(row for row in here if row["drafter"] and not row["mtp"])
        rates = (f"{row['tokens_per_s']:.0f}" for row in (plain, head, drafter))
        ratios = (f"{row['speedup']:.2f}" for row in (head, drafter))
        lengths = (f"{row['acceptance_length']:.2f}" for row in (head, drafter))
        drawn.add_row(str(concurrency), *rates, *ratios, *lengths)
        print(f"acceptance by position at concurrency {concurrency}:", flush=True)
        for title, row in (("MTP", head), ("DFlash", drafter)):
            print(f"  {title:6} {' '.join(f'{rate:.2f}' for rate in row['acceptance_by_position'])}", flush=True)
    return drawn
