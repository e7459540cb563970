"""What `up`, `test` and `bench` read of SGLang is what its released source writes: log lines, failures and counters."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.client.metrics import read_metrics
from dflash_deploy.startup.progress import Phases, Step
from tests.support.parsers.fetch import REPOSITORY, fetched

RELEASE = "sglang-0.5.23"

# Phase, file, the text as the file writes it with `{}` for each value, and values.
LOGGED = [
    ("starting SGLang", "srt/entrypoints/engine.py", "server_args={}", ["{'model_path': '/models/target'}"]),
    ("loading the weights", "srt/model_executor/model_runner.py", "Load weight begin. avail mem={} GB", ["78.60"]),
    (
        "sizing the KV cache",
        "srt/model_executor/model_runner_components/kv_pool_runtime.py",
        "Post-capture KV sizing: KV cache allocated. dtype: %s, #tokens: %d, KV size: %.2f GB, avail mem=%.2f GB",
        [],
    ),
    *(
        (
            "capturing CUDA graphs",
            "srt/model_executor/model_runner_components/cuda_graph_setup.py",
            "Capture {} CUDA graph begin. backend={}, num_tokens={}, avail mem={} GB",
            [f"{role} prefill", "full", "256", "58.08"],
        )
        for role in ("target", "draft")
    ),
    *(
        (
            "capturing CUDA graphs",
            "srt/model_executor/model_runner_components/cuda_graph_setup.py",
            "Capture {} {} begin. backend={}, num_tokens_per_req={}, ",
            [f"{role} {graph}", "CUDA graph", "full", "16"],
        )
        for role in ("target", "draft")
        for graph in ("verify", "decode")
    ),
    (
        "capturing CUDA graphs",
        "srt/model_executor/runner/decode_cuda_graph_runner.py",
        "Capturing batches (bs={} avail_mem={} GB)",
        ["4", "1.58"],
    ),
    (
        "capturing CUDA graphs",
        "srt/model_executor/runner/prefill_cuda_graph_runner.py",
        "Capturing prefill shape (num_tokens={} avail_mem={} GB)",
        ["256", "1.58"],
    ),
    (
        "opening the endpoint",
        "srt/entrypoints/http_server.py",
        "The server is fired up and ready to roll!",
        [],
    ),
]

NAMED = re.compile(r"SGLang 0\.5\.23 (?:sglang/)?(srt/\S+\.py)")


@cache
def source(file: str) -> str:
    return (fetched(RELEASE) / "sglang" / file).read_text(encoding="utf-8")


@cache
def texts(file: str) -> frozenset[str]:
    """The strings of a module, with `{}` for each value that is formatted in."""
    return frozenset(_texts(ast.parse(source(file))))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(("phase", "file", "text", "values"), LOGGED)
def test_each_phase_begins_with_a_line_of_the_source(phase: str, file: str, text: str, values: list[str]) -> None:
    assert any(known.startswith(text) for known in texts(file)), sorted(one for one in texts(file) if text[:9] in one)
    line = f"[2026-11-01 12:00:00] {text.format(*values)}"
    assert Phases("sglang").after([line], Step("before")).phase == phase


def test_every_phase_of_sglang_is_among_them() -> None:
    known = {mark.phase for mark in load_catalog().phases if "sglang" in mark.by and mark.phase}
    # the line of the warm-up is the web server's (tests/sglang)
    assert known == {"warming up", *(phase for phase, *_ in LOGGED)}


def test_shards_are_counted_as_its_progress_bar_writes_them() -> None:
    bar = "{desc}: {percentage:3.0f}% Completed | {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
    assert bar in texts("srt/utils/common.py")
    assert "Loading safetensors checkpoint shards" in texts("srt/model_loader/weight_utils.py")
    values = {"desc": "Loading safetensors checkpoint shards", "percentage": 43, "n_fmt": 3, "total_fmt": 7}
    line = bar.format(**values, elapsed="00:12", remaining="00:16", rate_fmt="4.01s/it")
    loading = Step("loading the weights")
    assert Phases("sglang").after([line], loading) == Step("loading the weights", 3, 7)


def failure_lines() -> list[tuple[str, str]]:
    """The file and the line of each failure that SGLang's source is named for."""
    written = yaml.safe_load((REPOSITORY / "tests/unit/startup/failure_lines.yaml").read_text(encoding="utf-8"))
    named = [(NAMED.search(one.get("from") or ""), one.get("text", "")) for one in written]
    return [(found[1], text) for found, text in named if found]


@pytest.mark.parametrize(("file", "line"), failure_lines())
def test_each_failure_of_sglang_is_written_by_its_source(file: str, line: str) -> None:
    first_lines = (text.partition("\n")[0] for text in texts(file))
    known = (re.escape(text).replace(re.escape("{}"), ".+?") for text in first_lines if len(text) > 20)
    assert [pattern for pattern in known if re.search(pattern, line)]


def test_the_failures_of_sglang_are_compared() -> None:
    assert len(failure_lines()) >= 7


def exported() -> set[str]:
    """The names of all metrics in the source, as /metrics writes them."""
    found = re.findall(r'name="(sglang:\w+)"', source("srt/observability/metrics_collector.py"))
    assert len(found) > 50
    return set(found)


def test_every_counter_that_is_read_is_one_that_it_exports() -> None:
    # a name that the source no longer has would be read as 0 or as missing
    read = read_metrics("".join(f'{name}{{model_name="m"}} 7\n' for name in sorted(exported())))
    assert read.engine == "sglang"
    assert (read.generated_tokens, read.running, read.waiting, read.cache) == (7, 7, 7, 7.0)
    # seven steps of a block of seven, whose first position is no draft
    assert (read.drafts.drafts, read.drafts.draft_tokens) == (7, 42)
