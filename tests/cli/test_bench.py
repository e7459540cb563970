"""`bench` as a command: against an endpoint without a deployment, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.bench.figures import as_counted
from dflash_deploy.errors import ExitCode
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import SpecCounters
from tests.support.answering import KEY, MODEL, answer, answering
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.measured import rows
from tests.support.mtp_target import target_without_head
from tests.support.ports import free_port


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return file


def refused(ran: Ran, code: ExitCode, *says: str) -> None:
    assert ran.code is code, ran.out + ran.err
    assert ran.err.strip().splitlines()[-1].startswith("  hint: ")
    for text in says:
        assert text in ran.err


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "llamacpp-buun"])
def test_what_an_engine_counts_is_told_and_a_nought_that_means_nothing_is_not(engine: str) -> None:
    drafted, plain = (next(row for row in rows() if row.speculation == kind) for kind in ("dflash", "off"))
    every = ENGINES[engine].counts_every_draft
    assert as_counted(drafted, counts_every_draft=every).acceptance_length == drafted.acceptance_length
    assert as_counted(drafted, counts_every_draft=every).draft_tokens == 7
    assert as_counted(plain, counts_every_draft=every).draft_tokens == 0
    silent = as_counted(replace(drafted, counted=SpecCounters(), draft_tokens=0), counts_every_draft=every)
    assert silent.draft_tokens == (0 if engine in {"vllm", "llamacpp"} else None)


def test_an_endpoint_without_a_deployment_is_measured(tmp_path: Path, key_file: Path) -> None:
    saved, report = tmp_path / "run.json", tmp_path / "run.html"
    files = ("--save", str(saved), "--report", str(report), "--key-file", str(key_file))
    with answering(answer(40, 2)) as url, answering(answer(80)) as slow:
        options = ("--url", f"{url}/v1", "--baseline-url", slow, "-w", "code,prose", "--concurrency", "4,1,4")
        data = dflash("bench", *options, *files, "--requests", "6", "--json", at=tmp_path).succeeded().document["data"]
    assert [(row["workload"], row["concurrency"], row["drafter"]) for row in data["rows"]] == [
        (workload, streams, drafter)
        for workload in ("code", "prose")
        for streams in (1, 4)
        for drafter in (True, False)
    ]
    for row in data["rows"]:
        assert (row["requests"], row["failed"], row["output_tokens"]) == (6, 0, 480)
        assert row["ttft_ms"]["p50"] > 0
        assert (row["speedup"] is not None) is row["drafter"]
        # such an endpoint tells nothing of drafts
        assert (row["draft_tokens"], row["acceptance_length"]) == (None, None)
    assert data["measured"]["model"] == MODEL
    assert json.loads(saved.read_text())["data"] == data
    assert f'"tokens_per_s": {data["rows"][0]["tokens_per_s"]!r}' in report.read_text()
    for file in (saved, report):
        assert KEY not in file.read_text()


def test_people_get_a_table(tmp_path: Path, key_file: Path) -> None:
    with answering(answer(5)) as url:
        options = ("--url", url, "--key-file", str(key_file), "-w", "chat", "--concurrency", "1")
        ran = dflash("bench", *options, at=tmp_path).succeeded()
    assert "tokens/s" in ran.out


def test_an_answer_that_does_not_come_fails_the_run(tmp_path: Path, key_file: Path) -> None:
    with answering(answer(5), refuse=True) as url:
        options = (
            "--url",
            url,
            "--key-file",
            str(key_file),
            "--concurrency",
            "2",
            "--save",
            "x.json",
            "--report",
            "x.html",
        )
        ran = dflash("bench", *options, at=tmp_path)
        document = dflash("bench", *options, "--json", at=tmp_path)
    refused(ran, ExitCode.BENCHMARK, "answered 503")
    assert document.document["error"]["code"] == ExitCode.BENCHMARK
    # this endpoint repeats the key in its refusal
    for text in (ran.out, document.err):
        assert KEY not in text
    for text in (ran.err, document.out, (tmp_path / "x.json").read_text(), (tmp_path / "x.html").read_text()):
        assert KEY not in text
        assert "key [redacted]" in text


def test_a_speed_up_that_is_too_small_fails_the_run(tmp_path: Path, key_file: Path) -> None:
    with answering(answer(20)) as url:
        options = ("--url", url, "--baseline-url", url, "--key-file", str(key_file), "--concurrency", "1")
        ran = dflash("bench", *options, "--min-speedup", "50", at=tmp_path)
    refused(ran, ExitCode.BENCHMARK, "not 50")


def test_who_does_not_answer_is_told_early(tmp_path: Path, key_file: Path) -> None:
    key = ("--key-file", str(key_file))
    refused(dflash("bench", "--url", f"http://127.0.0.1:{free_port()}", *key, at=tmp_path), ExitCode.NOT_READY)
    with answering(answer(5)) as url:
        refused(dflash("bench", "--url", url, at=tmp_path), ExitCode.NOT_READY, "401")
        wrong = dflash("bench", "--url", url, *key, "--model", "another", at=tmp_path)
    refused(wrong, ExitCode.NOT_READY, "does not serve another", MODEL)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--concurrency", "0"), "--concurrency 0"),
        (("--concurrency", "1,two"), "1,two"),
        (("--concurrency", ""), "--concurrency"),
        (("--min-speedup", "2"), "--min-speedup"),
        (("--save", "nowhere/x.json"), "nowhere"),
        (("--url", "box:8000"), "box:8000"),
        (("--url", "http://box", "--baseline"), "cannot be restarted"),
        (("--url", "http://box", "--mtp", "2"), "cannot be restarted"),
        (("--context", "-1"), "--context"),
        (("--agents", "2"), "--workload agents"),
        (("--share", "result.json"), "make proof"),
        (("--url", "http://box", "--key-file", "nothing"), "nothing cannot be read"),
        (("--key-file", "k"), "--url"),
        ((), "no deployment"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    refused(dflash("bench", *options, at=tmp_path), ExitCode.USAGE, says)


def test_agents_need_a_context(tmp_path: Path, key_file: Path) -> None:
    with answering(answer(5)) as url:
        options = ("--url", url, "--key-file", str(key_file), "--workload", "agents")
        refused(dflash("bench", *options, at=tmp_path), ExitCode.USAGE, "does not report its context", "--context")
        ran = dflash("bench", *options, "--context", "512", at=tmp_path)
    refused(ran, ExitCode.USAGE, "answers of 256 tokens do not fit a context of 512 tokens", "--max-tokens")


@pytest.mark.parametrize("held", ["", "two words", "line\nline", "schlüssel"])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, held: str) -> None:
    (tmp_path / "k").write_text(held)
    ran = dflash("bench", "--url", "http://127.0.0.1:1", "--key-file", "k", at=tmp_path)
    refused(ran, ExitCode.USAGE, "does not hold a valid key")


def test_a_deployment_without_a_drafter_has_no_baseline(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--no-drafter", "--port", str(free_port()), at=tmp_path)
    refused(dflash("bench", "--baseline", at=tmp_path), ExitCode.USAGE, "without speculative decoding")
    refused(dflash("bench", "-w", "coed", at=tmp_path), ExitCode.USAGE, "coed")
    refused(dflash("bench", at=tmp_path), ExitCode.NOT_READY, "dflash-deploy up")


def test_a_head_that_is_not_there_is_told_before_anything_is_stopped(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--port", str(free_port()), at=tmp_path)
    edit_env(tmp_path, MODEL_HOST_PATH=str(target_without_head(tmp_path / "target")))
    refused(dflash("bench", "--mtp", "2", at=tmp_path), ExitCode.USAGE, "the target has no MTP head")
    edit_env(tmp_path, DFLASH_DRAFTER="mtp")
    refused(dflash("bench", "--mtp", "2", at=tmp_path), ExitCode.USAGE, "uses the target's MTP head already")
    refused(dflash("tune", at=tmp_path), ExitCode.USAGE, "tune is for a drafter")
    refused(dflash("up", at=tmp_path), ExitCode.PREFLIGHT, "the target has no MTP head")
