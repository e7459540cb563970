"""The whole job with the real llama.cpp, out of the wheel of `xllamacpp`, and the tiny pair as GGUF, on the CPU."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt, load_prompts
from dflash_deploy.checks.lossless import ODD, READ, TIE
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.images import plain_png
from dflash_deploy.client.rereading import REREADERS
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.commands import HANGS, eventually, wait_until
from tests.support.llamacpp_native import connect, processes, started, without_drafter
from tests.support.llamacpp_routes import opened
from tests.support.llamacpp_server import convert
from tests.support.onlooker import seen_by_another_user
from tests.support.schemas import data_problems

GGUF = asset("models/tiny/gguf")
PROMPTS = asset("models/tiny/prompts.jsonl")

ASK = "What colour is this image?"

# Checks of `test` that the engine ignores, or that the tiny target cannot answer.
SKIPPED = {"digit", "shape", "tools", "reasoning"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started."""
    with started(tmp_path_factory.mktemp("llamacpp")) as directory:
        yield directory
    assert not processes(directory)


def test_every_check_passes_or_says_why_it_is_skipped(served: Path) -> None:
    document = dflash("test", "--json", at=served).succeeded().document
    checks = {check["name"]: check for check in document["data"]["checks"]}
    assert {name for name, check in checks.items() if check["status"] == "skipped"} == SKIPPED
    assert {check["status"] for check in checks.values()} == {"passed", "skipped"}
    assert "llamacpp:" in checks["metrics"]["got"]
    assert checks["vision"]["got"].count("The image is ") == 3
    new, read = re.findall(r"(\d+) of them new, read (\d+)", checks["turns"]["got"])[0]
    assert int(read) <= int(new) + 16
    assert checks["size"]["got"] == "refused with 400, the body with 413"
    assert checks["drafts"]["got"].startswith("good: acceptance length")
    assert "first draft token accepted" in checks["drafts"]["got"]


def test_it_serves_each_of_several_names(served: Path) -> None:
    only = Deployment(served).values["SERVED_MODEL_NAME"]
    edit_env(served, SERVED_MODEL_NAME="zeta alpha")
    dflash("up", at=served).succeeded()
    with connect(served) as endpoint:
        assert endpoint.model == "zeta"
        assert endpoint.models() == ["alpha", "zeta"]
        assert "Paris" in endpoint.chat("What is the capital of France?", max_tokens=16).text
    edit_env(served, SERVED_MODEL_NAME=only)
    dflash("up", at=served).succeeded()


def test_a_request_that_it_refused_is_history_once_it_has_answered_another(served: Path) -> None:
    log = str(served / ".dflash" / "engine.log")

    def named() -> bool:
        return "request-beyond-context" in dflash("explain", log, at=served).succeeded().out

    with connect(served) as endpoint:
        with pytest.raises(EndpointError):
            endpoint.chat("a b c " * 3000, max_tokens=8)
        # the server writes its log beside its answers
        assert wait_until(named, HANGS)
        endpoint.chat(ASK, max_tokens=8)
        assert wait_until(lambda: not named(), HANGS)


def test_status_says_what_to_do_if_env_has_another_key(served: Path) -> None:
    key = Deployment(served).key.reveal()
    edit_env(served, VLLM_API_KEY=key[::-1])
    data = dflash("status", "--json", at=served).succeeded().document["data"]
    edit_env(served, VLLM_API_KEY=key)
    assert data["state"] == "unresponsive"
    assert "answered 401" in data["problem"]
    assert "`dflash-deploy restart`" in data["do"]


def test_only_health_is_open(served: Path) -> None:
    with connect(served) as endpoint:
        url = endpoint.url.removesuffix("/v1")
    assert opened(url) == {("GET", "/health"), ("HEAD", "/health")}


def test_no_secret_is_visible(served: Path) -> None:
    key = Deployment(served).key.reveal()
    running = processes(served)
    assert [line for line in running.values() if "serve.door" in line]
    assert not [line for line in running.values() if key in line]
    assert not [pid for pid in running if key in Path(f"/proc/{pid}/environ").read_text()]
    log = (served / ".dflash" / "engine.log").read_text()
    assert "llama-server --model" in log
    assert key not in log
    assert key not in dflash("logs", at=served).succeeded().out
    seen = seen_by_another_user()
    assert "llamacpp_wheel" in seen, "the server is not among the processes that are seen"
    assert key not in seen


def test_an_answer_tells_its_drafts_as_the_metrics_count_them(served: Path) -> None:
    with connect(served) as endpoint:
        before = endpoint.counters()
        answer = endpoint.chat("Count from 1 to 50.", max_tokens=256)
        counted = endpoint.counters() - before
    assert answer.drafted is not None
    assert (answer.drafted.draft_tokens, answer.drafted.accepted_tokens) == (
        counted.draft_tokens,
        counted.accepted_tokens,
    )
    # an answer does not tell its steps: they are computed
    assert abs(answer.drafted.drafts - counted.drafts) <= 1
    assert counted.acceptance_length is not None
    assert counted.acceptance_length > 5
    assert sum(counted.accepted_by_position) == counted.accepted_tokens


def answers(directory: Path) -> dict[str, str]:
    """The greedy answers to all prompts without an image, one after the other.

    Rounding depends on what is computed together, and may decide between two tokens that are equally likely.
    """
    prompts = load_prompts(PROMPTS, "chat", "thinking", "long")
    with connect(directory) as endpoint:
        return {prompt.id: endpoint.complete(prompt.body(endpoint.model)).text for prompt in prompts}


def test_the_drafter_changes_no_answer(served: Path) -> None:
    drafted = answers(served)
    with without_drafter(served):
        plain = answers(served)
    assert len(drafted) > 100
    assert {name: (plain[name], text) for name, text in drafted.items() if text != plain[name]} == {}
    prompts = [prompt for prompt in load_prompts(PROMPTS) if prompt.id in drafted]
    right = [prompt.id for prompt in prompts if drafted[prompt.id] == prompt.expected]
    print(f"{len(right)} of {len(prompts)} answers are those of the corpus")
    assert len(right) > 0.95 * len(prompts)


def test_the_target_prefers_each_token_of_its_answers(served: Path) -> None:
    """As `test` checks it for a few questions; drafts were rejected meanwhile."""
    asks = [prompt.messages[-1].content for prompt in load_prompts(PROMPTS, "chat", "long")[::3]]
    reader = REREADERS["tokens"]
    with connect(served) as endpoint:
        before = endpoint.counters()
        answers = [reader.ask(endpoint, ask, max_tokens=READ) for ask in [*asks, ODD]]
        drafted = endpoint.counters() - before
        read = [place.behind for answer in answers for place in reader.read(endpoint, answer)]
        assert (endpoint.counters() - before).drafts == drafted.drafts
    print(f"{len(answers)} answers, {len(read)} tokens, at most {max(read):.3f} behind; {drafted}")
    assert len(read) == sum(len(answer.answer) for answer in answers) > 500
    assert max(read) <= TIE
    assert drafted.draft_tokens - drafted.accepted_tokens > 100


def looked_at(directory: Path) -> dict[str, str]:
    """The answers to plain images of several sizes, and to those of the corpus, four at the same time."""
    prompts = load_prompts(PROMPTS, "image")
    with connect(directory) as endpoint, ThreadPoolExecutor(4) as pool:
        answers = {
            f"{name} {size}": endpoint.ask_image(plain_png(colour, size, size), ASK, max_tokens=24).text
            for name, colour in COLOURS.items()
            for size in (32, 64, 256)
        }

        def look(prompt: Prompt) -> str:
            try:
                return endpoint.complete(prompt.body(endpoint.model)).text
            except EndpointError as problem:
                return str(problem.status)

        return answers | dict(zip((prompt.id for prompt in prompts), pool.map(look, prompts), strict=True))


def test_images_are_read_with_the_projector_while_drafting(served: Path) -> None:
    """No request with an image fails while drafting (ggml-org/llama.cpp#27408, #28587), and drafts change no answer."""
    with connect(served) as endpoint:
        before = endpoint.counters()
        drafted = looked_at(served)
        assert (endpoint.counters() - before).drafts > 0
    with without_drafter(served):
        plain = looked_at(served)
    assert drafted == plain
    assert [name for name, answer in drafted.items() if answer.isdecimal()] == []
    shown = {name: answer for name, answer in drafted.items() if name.split()[0] in COLOURS}
    assert {name: answer for name, answer in shown.items() if name.split()[0] not in answer} == {}


def test_bench_measures_with_and_without_the_drafter(served: Path) -> None:
    told = ("--baseline", "--concurrency", "1", "--workload", "own", "--requests", "8", "--json")
    rows = dflash("bench", *told, at=served).succeeded().document["data"]["rows"]
    assert len(rows) == 2
    assert drafts(served)


def test_bench_measures_conversations_of_agents(served: Path) -> None:
    told = ("--workload", "agents", "--concurrency", "2", "--max-tokens", "8", "--report", "agents.html", "--json")
    data = dflash("bench", *told, at=served).succeeded().document["data"]
    assert data_problems("bench", data) == []
    rows = data["rows"]
    assert [row["turn"] for row in rows] == list(range(1, 10))
    assert {(row["requests"], row["failed"], row["concurrency"]) for row in rows} == {(2, 0, 2)}
    prompts = [row["input_tokens"] / 2 for row in rows]
    assert prompts == sorted(prompts)
    assert 500 < prompts[0] < 1000 < prompts[-1] < 2048
    # each turn found the one before in the prefix cache
    for before, row in pairwise(rows):
        assert row["cached_share"] > 0.8 * before["input_tokens"] / row["input_tokens"]
        assert row["acceptance_length"] >= 1
    assert '"turn": 9' in (served / "agents.html").read_text()
    ran = dflash("bench", "--workload", "agents", "--context", "4096", at=served)
    assert ran.code is ExitCode.USAGE
    assert "--context 2048 fits" in ran.err


def test_a_short_soak_finds_nothing_in_the_real_engine(served: Path) -> None:
    ran = dflash("test", "--soak", "0.2", "--json", at=served).succeeded()
    # no further line within the first minute
    assert re.match(r"3 agents for 0\.2 min, up to \d+ turns and 2,048 tokens\npassed ", ran.err)
    checks = {check["name"]: check["status"] for check in ran.document["data"]["checks"]}
    assert list(checks) == ["errors", "memory", "stalls", "latency"]
    assert checks["errors"] == "passed"
    assert "failed" not in checks.values()
    assert data_problems("test", ran.document["data"]) == []


def drafts(directory: Path) -> bool:
    """Whether the engine drafts for an answer."""
    with connect(directory) as endpoint:
        before = endpoint.counters()
        endpoint.chat("Count from 1 to 50.", max_tokens=256)
        return (endpoint.counters() - before).drafts > 0


def test_ctrl_c_while_decoding_plainly_brings_the_drafter_back(served: Path) -> None:
    run, env = Deployment(served).state / "run.json", (served / ".env").read_bytes()

    def config() -> object:
        return json.loads(run.read_text())["config"]

    with_drafter = config()
    command = [sys.executable, "-m", "dflash_deploy", "bench", "--baseline", "--concurrency", "1", "--requests", "64"]
    with subprocess.Popen(command, cwd=served, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
        # the engine has been exchanged, and loads or answers
        eventually(lambda: config() != with_drafter)
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=HANGS)
    assert bench.returncode == ExitCode.INTERRUPTED, said
    assert config() == with_drafter
    assert (served / ".env").read_bytes() == env
    # it is starting: nothing waited for it
    dflash("up", at=served).succeeded()
    assert drafts(served)


def test_an_engine_that_was_killed_ends_the_door_and_up_starts_it_again(served: Path) -> None:
    before = processes(served)
    (engine,) = [pid for pid, line in before.items() if "llamacpp_wheel" in line and "serve.door" not in line]
    os.kill(engine, signal.SIGKILL)
    deadline = time.monotonic() + HANGS
    while set(before) & set(processes(served)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert dflash("status", "--json", at=served).document["data"]["state"] == "exited"
    dflash("up", at=served).succeeded()
    assert "ready" in dflash("status", at=served).succeeded().out


def test_the_ggufs_are_what_the_converter_writes(tmp_path: Path) -> None:
    convert(tmp_path)

    def digests(directory: Path) -> dict[str, str]:
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.glob("*.gguf")}

    # the fork's drafter is of another converter (test_fork_server.py)
    assert {name: digest for name, digest in digests(GGUF).items() if name != "drafter-buun.gguf"} == digests(tmp_path)
