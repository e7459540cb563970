"""The whole job with the real server of the buun fork and the tiny pair, on the CPU.

The fork is on no package index: without it these tests are skipped (tests/support/fork.py).
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from tests.parsers.test_llamacpp_server import SKIPPED
from tests.support.cli import dflash, edit_env
from tests.support.fork import convert, fork_or_skip
from tests.support.llamacpp_native import connect, processes, without_drafter
from tests.support.llamacpp_routes import opened
from tests.support.ports import free_port

INIT = ("init", "--profile", "cpu", "--engine", "llamacpp-buun", "--runtime", "native")

# A question whose drafts are accepted in every step but the last, and one with a draft that is rejected earlier.
RIGHT, WRONG = "Count from 1 to 50.", "Count from 1 to 40."

# The tiny target's own answer to both, with upstream llama.cpp and with the fork without a drafter.
TARGETS_ANSWER = ", ".join(map(str, range(1, 51)))

# What the fork logs once it has not restored the position of a target's state.
NOT_ADVANCED = "find_slot: non-consecutive token position"

INVALID = b"GGUF of another kind"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started, with the server that LLAMA_SERVER names."""
    server = fork_or_skip("llama-server")
    directory = tmp_path_factory.mktemp("fork")
    dflash(*INIT, "--port", str(free_port()), at=directory).succeeded()
    edit_env(directory, LLAMA_SERVER=str(server))
    ran = dflash("up", at=directory).succeeded()
    assert "after the first rejected draft token, the answers are not the target's own" in ran.err
    assert "use upstream llama.cpp (`dflash-deploy init --engine llamacpp`)" in ran.err
    yield directory
    dflash("down", at=directory).succeeded()
    assert not processes(directory)


def test_every_check_but_those_of_its_answers_passes(served: Path) -> None:
    ran = dflash("test", "--json", at=served)
    checks = {check["name"]: check for check in ran.document["data"]["checks"]}
    failed = {name for name, check in checks.items() if check["status"] == "failed"}
    assert ran.code is ExitCode.SMOKE_TEST
    # whether one of the changed answers comes in the five seconds of `mixed` is chance
    assert failed - {"mixed"} == {"drafts", "lossless"}
    # the first finding, before any grade of acceptance: no mask token and no revision is wrong
    assert ran.document["error"]["message"].startswith(f"the answers are not the target's own; {len(failed)} of ")
    assert "`Count from 1 to 40.`: at token 13 the target prefers `5`" in checks["lossless"]["got"]
    assert "DFLASH_DRAFTER=off" in ran.document["error"]["hint"]
    assert {name for name, check in checks.items() if check["status"] == "skipped"} == SKIPPED | {"vision"}
    assert checks["size"]["got"] == "refused with 400, the body with 413"
    assert checks["auth"]["status"] == "passed"


def test_only_health_is_open(served: Path) -> None:
    with connect(served) as endpoint:
        url = endpoint.url.removesuffix("/v1")
    assert opened(url) == {("GET", "/health"), ("HEAD", "/health")}


def test_a_rejected_draft_changes_the_answer_and_without_the_drafter_it_is_right(served: Path) -> None:
    """The bug of this release, which `plan` and `up` name. If this fails, the fork is fixed and the catalog is not."""
    log = served / ".dflash" / "engine.log"
    with connect(served) as endpoint:
        right = endpoint.chat(RIGHT, max_tokens=256)
        wrong = endpoint.chat(WRONG, max_tokens=256)
    assert right.text.strip() == TARGETS_ANSWER
    assert right.drafted is not None
    assert right.drafted.acceptance_length is not None
    assert right.drafted.acceptance_length > 7
    assert wrong.text.strip() != TARGETS_ANSWER
    assert NOT_ADVANCED in log.read_text()
    with without_drafter(served), connect(served) as endpoint:
        assert endpoint.chat(WRONG, max_tokens=256).text.strip() == TARGETS_ANSWER
        assert NOT_ADVANCED not in log.read_text()


def test_no_secret_is_visible_and_a_sequence_has_the_whole_context(served: Path) -> None:
    key = next(line for line in (served / ".env").read_text().splitlines() if line.startswith("VLLM_API_KEY="))[13:]
    running = processes(served)
    assert [line for line in running.values() if "serve.door" in line]
    assert not [line for line in running.values() if key in line]
    assert not [pid for pid in running if key in Path(f"/proc/{pid}/environ").read_text()]
    with connect(served) as endpoint:
        endpoint.chat(RIGHT, max_tokens=8)
    log = (served / ".dflash" / "engine.log").read_text()
    assert key not in log
    # half of it if the backup of the sequence had its part
    assert "n_ctx_slot = 2048" in log
    assert "n_ctx_slot = 1024" not in log


def test_bench_status_and_logs(served: Path) -> None:
    told = ("--baseline", "--concurrency", "1", "--workload", "own", "--requests", "4", "--json")
    rows = dflash("bench", *told, at=served).succeeded().document["data"]["rows"]
    assert [row["drafter"] for row in rows] == [True, False]
    assert all(row["output_tokens"] > 0 for row in rows)
    assert dflash("status", "--json", at=served).succeeded().document["data"]["state"] == "ready"
    assert "llama-server --model" in dflash("logs", at=served).succeeded().out


def refused(directory: Path, code: ExitCode, text: str) -> None:
    """`up` says that and nothing keeps running."""
    ran = dflash("up", at=directory)
    assert ran.code is code, ran.err
    assert text in ran.err
    assert not processes(directory)


def test_a_server_on_the_path_is_found_and_other_files_are_refused(tmp_path: Path) -> None:
    server = fork_or_skip("llama-server")
    dflash(*INIT, "--port", str(free_port()), at=tmp_path).succeeded()
    refused(tmp_path, ExitCode.PREFLIGHT, "put it on the PATH or name it in LLAMA_SERVER")
    edit_env(tmp_path, LLAMA_SERVER="/nowhere/llama-server")
    refused(tmp_path, ExitCode.PREFLIGHT, "LLAMA_SERVER: /nowhere/llama-server is missing")
    other = tmp_path / "other"
    other.write_bytes(INVALID)
    edit_env(tmp_path, LLAMA_SERVER=str(other))
    refused(tmp_path, ExitCode.PREFLIGHT, f"{other} has no option dflash-max-slots")
    edit_env(tmp_path, LLAMA_SERVER="")
    on_path = {"PATH": os.pathsep.join([str(server.parent), os.environ["PATH"]])}
    dflash("up", at=tmp_path, environment=on_path).succeeded()
    dflash("down", at=tmp_path).succeeded()
    assert not processes(tmp_path)


def test_the_drafter_is_what_the_forks_converter_writes(tmp_path: Path) -> None:
    made = convert(tmp_path, fork_or_skip("convert"))
    kept = asset("models/tiny/gguf") / "drafter-buun.gguf"
    assert hashlib.sha256(made.read_bytes()).hexdigest() == hashlib.sha256(kept.read_bytes()).hexdigest()
