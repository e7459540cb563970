"""The load generator of `bench`: compared with `vllm bench serve` on one server, and its highest possible rate."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench.figures import Spread, at_concurrency, row_of
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import Prompt, load_prompts
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.redact import Secret
from tests.support.answering import KEY, MODEL, answer, answering
from tests.support.cli import dflash
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.vllm_bench import VllmBench, vllm_bench

CONCURRENCIES = (1, 4)
REPEATS = 5
# Many short rounds: on a shared machine, two runs of three seconds with the same client differ by 8 %.
PAIRS, PROMPTS = 60, 8

# The chunks of an answer to a long prompt with the tiny drafter. Without it, each chunk has one token.
CHUNKS, TOKENS_PER_CHUNK = 20, 7

FIGURES = {
    "tokens/s": ("tokens/s", "0.97 to 1.03"),
    "median TTFT": ("ms", "0.95 to 1.05"),
    "median TPOT": ("ms", "0.95 to 1.05"),
    "mean ITL": ("ms", ""),
    "acceptance length": ("tokens", "0.99 to 1.01"),
}


def rows() -> Iterator[Row]:
    """Both load generators in turns on one engine; then the rate of this one on an endpoint that only sends."""
    delivered = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        server = Server(directory)
        try:
            for concurrency in CONCURRENCIES:
                both = _both(server, concurrency)
                delivered[concurrency] = median(one["tokens/s"] for _, one in both)
                for name, (unit, aim) in FIGURES.items():
                    theirs, ours = (median(pair[half][name] for pair in both) for half in (0, 1))
                    what = f"{name} at {at_concurrency(concurrency)}, compared with vllm bench serve"
                    yield Row(what, theirs, ours, unit, aim, PAIRS)
        finally:
            dflash("down", at=directory)
    for concurrency, engine in delivered.items():
        for chunks, tokens in ((CHUNKS, TOKENS_PER_CHUNK), (CHUNKS * TOKENS_PER_CHUNK, 1)):
            ceiling = f"ceiling at {at_concurrency(concurrency)}, {tokens} tokens per chunk"
            what = f"{ceiling}, compared with the engine with its drafter"
            yield Row(what, engine, _ceiling(concurrency, chunks, tokens), "tokens/s", "20 or more", REPEATS)


def _both(server: Server, concurrency: int) -> list[tuple[dict[str, float], dict[str, float]]]:
    """The figures of both load generators in each repeat. They take turns to be first; one round of each warms up."""
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")[:PROMPTS]
    with server.serve(drafting=True) as endpoint, vllm_bench(server.key) as bench:
        turns = (partial(_theirs, bench), _ours)
        pairs = []
        for repeat in range(PAIRS + 1):
            done = {half: turns[half](endpoint, prompts, concurrency) for half in ((0, 1), (1, 0))[repeat % 2]}
            pairs.append((done[0], done[1]))
        return pairs[1:]


def _theirs(bench: VllmBench, endpoint: Endpoint, prompts: list[Prompt], concurrency: int) -> dict[str, float]:
    said = bench.serve(endpoint, prompts, concurrency=concurrency)
    return {
        "tokens/s": said.result["output_throughput"],
        "median TTFT": said.result["median_ttft_ms"],
        "median TPOT": said.result["median_tpot_ms"],
        "mean ITL": said.result["mean_itl_ms"],
        "acceptance length": said.counted.acceptance_length or 0.0,
    }


def _ours(endpoint: Endpoint, prompts: list[Prompt], concurrency: int) -> dict[str, float]:
    bodies = [prompt.body(endpoint.model) for prompt in prompts]
    load = measure(endpoint, bodies, concurrency=concurrency, requests=len(bodies), warmup=0)
    row = row_of("own", load, "dflash")

    def of(spread: Spread | None, name: str) -> float:
        return float(getattr(spread, name))

    return {
        "tokens/s": row.tokens_per_s,
        "median TTFT": of(row.ttft_ms, "p50"),
        "median TPOT": of(row.tpot_ms, "p50"),
        "mean ITL": of(row.itl_ms, "mean"),
        "acceptance length": row.acceptance_length or 0.0,
    }


def _ceiling(concurrency: int, chunks: int, tokens: int) -> float:
    """Tokens per second from an endpoint in another process that sends a prepared answer."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}]}
    with answering(answer(chunks, tokens)) as url, Endpoint(url, Secret(KEY), MODEL) as endpoint:
        return measure(endpoint, [body], concurrency=concurrency, requests=200, repeats=REPEATS).median
