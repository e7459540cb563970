"""`bench` on the real engine: what it counts is true, and plain decoding beside it leaves nothing behind.

What Ctrl-C leaves is in tests/parsers/test_llamacpp_server.py.
"""

import json
from pathlib import Path

import pytest

from dflash_deploy.bench.figures import row_of
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import Prompt
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.server import Server
from tests.support.vllm_bench import vllm_bench

pytestmark = pytest.mark.restarts


def test_the_running_engine_is_measured(drafting: Server, tmp_path: Path) -> None:
    saved, report = tmp_path / "run.json", tmp_path / "run.html"
    sizes = ("--concurrency", "1,4", "--requests", "8", "--repeats", "2")
    files = ("--save", str(saved), "--report", str(report))
    ran = dflash("bench", "--json", *sizes, *files, at=drafting.directory).succeeded()
    data = ran.document["data"]
    assert [row["concurrency"] for row in data["rows"]] == [1, 4]
    for row in data["rows"]:
        counted = row["counted"]
        assert (row["workload"], row["requests"], row["failed"], row["draft_tokens"]) == ("own", 16, 0, 7)
        assert row["acceptance_length"] > 5
        assert len(row["acceptance_by_position"]) == 7
        assert counted["draft_tokens"] == 7 * counted["drafts"]
        # each answer: its first token, then one and the accepted ones of each step, the last of which may reach too far
        made = 16 + counted["drafts"] + counted["accepted_tokens"]
        assert 0.9 * made < row["output_tokens"] <= made
        # a piece holds one token or more, and a busy machine may bring several pieces at once
        assert row["tpot_ms"]["max"] <= row["itl_ms"]["max"]
    assert json.loads(saved.read_text())["data"] == data
    for text in (ran.out, ran.err, saved.read_text(), report.read_text()):
        assert drafting.key not in text


def test_vllms_own_benchmark_counts_the_same(drafting: Server, prompts: list[Prompt]) -> None:
    asked = [prompt for prompt in prompts if prompt.kind == "long"][:12]
    with drafting.connect() as endpoint, vllm_bench(drafting.key) as bench:
        bodies = [prompt.body(endpoint.model) for prompt in asked]
        row = row_of("own", measure(endpoint, bodies, concurrency=2, requests=12, warmup=0), "dflash")
        theirs = bench.serve(endpoint, asked, concurrency=2)
    assert theirs.result["completed"] == row.requests == 12
    assert theirs.result["total_input_tokens"] == row.input_tokens
    assert theirs.result["total_output_tokens"] == pytest.approx(row.output_tokens, rel=0.01)
    assert theirs.counted.acceptance_length == pytest.approx(row.acceptance_length, rel=0.01)


def test_drafter_head_and_no_drafts_side_by_side_leave_everything_as_it_was(drafting: Server) -> None:
    directory = drafting.directory
    env = (directory / ".env").read_bytes()
    options = ("--baseline", "--mtp", "3", "--concurrency", "1", "--requests", "4")
    ran = dflash("bench", "--json", *options, at=directory).succeeded()
    drafter, head, plain = ran.document["data"]["rows"]
    assert (directory / ".env").read_bytes() == env
    assert dflash("up", "--json", at=directory).succeeded().document["data"]["changed"] is False
    assert dflash("status", "--json", at=directory).document["data"]["acceptance_length"] > 1
    assert [(row["drafter"], row["mtp"], row["draft_tokens"]) for row in (drafter, head, plain)] == [
        (True, False, 7),
        (True, True, 3),
        (False, False, 0),
    ]
    assert head["counted"]["draft_tokens"] == 3 * head["counted"]["drafts"] > 0
    assert 2 < head["acceptance_length"] < drafter["acceptance_length"]
    assert plain["acceptance_length"] is None
    for drafted in (drafter, head):
        by_position = drafted["acceptance_by_position"]
        assert len(by_position) == drafted["draft_tokens"]
        assert by_position == sorted(by_position, reverse=True)
        assert drafted["acceptance_length"] == pytest.approx(1 + sum(by_position))
        assert drafted["speedup"] == pytest.approx(drafted["tokens_per_s"] / plain["tokens_per_s"])
        # each answer ends by itself: whoever drafts, the target says the same
        assert drafted["output_tokens"] == plain["output_tokens"]


def test_figures_of_an_engine_that_does_otherwise_than_env_says_are_a_failure(drafting: Server) -> None:
    env = drafting.directory / ".env"
    kept = env.read_bytes()
    # edited, and not applied by `up`
    edit_env(drafting.directory, DFLASH_DRAFTER="off")
    ran = dflash("bench", "--concurrency", "1", "--requests", "2", at=drafting.directory)
    env.write_bytes(kept)
    assert ran.code is ExitCode.BENCHMARK
    assert "in the run without speculative decoding" in ran.err
