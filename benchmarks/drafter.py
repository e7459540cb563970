"""Tokens per second of the tiny target with its drafter and without, on the same prompts in one run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench.figures import at_concurrency
from dflash_deploy.bench.load import Load, measure
from dflash_deploy.bench.workload import load_prompts
from tests.support.cli import dflash
from tests.support.ports import free_port
from tests.support.server import Server

CONCURRENCIES = (1, 2, 4, 8)
AIMS = {1: "2.5 or more", 4: "2.0 or more"}
REPEATS = 5


def rows() -> Iterator[Row]:
    """One row for each concurrency."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        server = Server(directory)
        try:
            plain = _measured(server, drafting=False)
            drafted = _measured(server, drafting=True)
        finally:
            dflash("down", at=directory)
    for one, other in zip(plain, drafted, strict=True):
        length = (other.counted.acceptance_length if other.counted else None) or 0.0
        what = f"{at_concurrency(one.concurrency)}, acceptance length {length:.2f}"
        yield Row(what, one.median, other.median, "tokens/s", AIMS.get(one.concurrency, ""), REPEATS)


def _measured(server: Server, *, drafting: bool) -> list[Load]:
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    with server.serve(drafting=drafting) as endpoint:
        bodies = [prompt.body(endpoint.model) for prompt in prompts]
        return [
            measure(endpoint, bodies, concurrency=concurrency, requests=len(prompts), repeats=REPEATS)
            for concurrency in CONCURRENCIES
        ]
