"""Every fingerprint on a real line, nothing known where nothing is, and no log that takes long."""

import re
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dflash_deploy.catalog import load
from dflash_deploy.catalog.failures import Failure, ranked
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.settings import all_setting_names, passed_on
from dflash_deploy.cli.app import COMMANDS
from dflash_deploy.diagnosis.collect import Collector
from dflash_deploy.diagnosis.diagnose import LogReader, ProcessEnd
from dflash_deploy.diagnosis.evidence import MOST_WORK, decisive_lines, searchable
from dflash_deploy.diagnosis.lines import LONGEST_LINE
from tests.support.rows import each_of, rows_of
from tests.unit.startup.explained import explained

FAILURES = load_catalog().failures
LINES: list[dict[str, Any]] = rows_of(Path(__file__).with_name("failure_lines.yaml"))

NAMES = {*all_setting_names(), "AVX2", "TRITON_ATTN", "DOCKER_HOST"}  # what may be written in capitals
HEALTHY = """\
dflash: vLLM 0.32.0: vllm serve /models/target --host 0.0.0.0
(APIServer pid=23767) INFO 11-21 11:01:24 [model.py:733] Resolved architecture: DFlashDraftModel
(APIServer pid=23767) WARNING 11-21 11:01:24 [cpu.py:121] VLLM_CPU_KVCACHE_SPACE not set. Using 4 GiB for KV cache.
(EngineCore pid=24019) INFO 11-21 11:01:58 [kv_cache_utils.py:2327] CPU KV cache size: 349,525 tokens
INFO:     127.0.0.1:48512 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error""".splitlines()


def reader(engine: str = "vllm", version: str = "0.33.0") -> LogReader:
    return LogReader(FAILURES, engine, version)


@each_of(LINES, name=lambda case: str(case["id"]))
def test_a_real_line_is_known(case: dict[str, Any]) -> None:
    asked = reader(case.get("engine", "vllm"), case.get("version", "0.33.0"))
    log = [*HEALTHY, *case.get("text", "").splitlines()]
    ending = ProcessEnd(case.get("exit_code"), case.get("out_of_memory", False), case.get("restarts", 0))
    failure = next(failure for failure in FAILURES if failure.id == case["id"])
    if failure.effect == "costs":
        (found,) = asked.costs(log)
        assert asked.read(log).diagnosis is None
    else:
        diagnosis = asked.read(log, ending, case.get("kernel", "").splitlines()).diagnosis
        assert diagnosis is not None
        found = diagnosis
    assert found.id == case["id"]
    assert case.get("says", "") in found.cause
    assert case.get("does", "") in found.do
    assert "{" not in found.cause + found.do + "".join(found.fix.values())


def test_every_fingerprint_has_a_real_line() -> None:
    assert {failure.id for failure in FAILURES} == {case["id"] for case in LINES}


def test_every_id_is_in_one_file() -> None:
    folder = Path(load.__file__).with_name("failures")
    ids = [row["id"] for file in folder.glob("*.yaml") for row in rows_of(file)["failures"]]
    assert sorted(ids) == sorted(failure.id for failure in FAILURES)


def test_of_two_rows_that_match_one_real_line_one_is_over_the_other() -> None:
    hidden = set()
    for case in LINES:
        engine = case.get("engine", "vllm")
        rows = [row for row in FAILURES if row.names_an_end and row.effect == "ends" and row.concerns(engine, "")]
        for line in case.get("text", "").splitlines():
            matching = [row for row in rows if row.compiled.search(line)]
            pairs = combinations(matching, 2)
            hidden |= {(one.id, two.id) for one, two in pairs if one.general == two.general and two.id not in one.over}
    assert hidden == set(), "give the more specific row of each pair `over: [OTHER]`"


def test_the_order_of_rows_has_no_meaning() -> None:
    shuffled = sorted(FAILURES, key=lambda row: row.cause)
    assert ranked(shuffled) == FAILURES
    names = {row.id for row in FAILURES}
    assert {name for row in FAILURES for name in row.over} <= names
    one = FAILURES[0].model_copy(update={"over": [FAILURES[1].id]})
    with pytest.raises(ValueError, match="are over each other"):
        ranked([one, FAILURES[1].model_copy(update={"over": [one.id]})])


@each_of(FAILURES, name=lambda failure: failure.id)
def test_what_to_do_names_settings_and_verbs_that_exist(failure: Failure) -> None:
    for word in re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+(?![\w*])", failure.do):
        assert word in NAMES or passed_on(word), word
    for verb in re.findall(r"`dflash-deploy ([a-z]+)", failure.do):
        assert verb in COMMANDS, verb
    for text in (failure.cause, failure.do, failure.source):
        assert text == text.strip(" .,;"), text


def test_a_healthy_log_is_no_failure() -> None:
    assert reader().read(HEALTHY).diagnosis is None
    assert reader().costs(HEALTHY) == ()


def test_a_failure_of_another_engine_or_version_is_not_taken() -> None:
    line = "llama_model_load: error loading model: unknown model architecture: 'dflash-draft'"
    assert reader("vllm").read([line]).diagnosis is None
    assert reader("llamacpp", "b11434").read([line]).diagnosis is not None


# Failures of a range of releases, and the first release that no longer ends this way.
RANGES = {
    "dflash2-unknown": "0.28.0",
    "dflash-unknown": "0.20.0",
    "block-table-shape": "0.27.0",
    "drafts-beyond-budget": "0.33",
    "turing-before-its-kernels": "0.13.0",
    "eagle-drafter-without-positions": "0.32.0",
    "eagle-drafter-of-mistral": "0.32.0",
    "gemma4-drafter-width": "0.27.0",
    "gemma4-widths-by-layer": "0.28.0",
    "awq-experts-misspelled-warning": "0.9.0",
    "sglang-two-backends-and-drafts": "0.5.2",
    "gguf-mtp-head-unknown": "b9870",
    "structured-output-without-constraint": "0.32.0",
    "qwen3-vl-by-transformers": "0.11.0",
    "qwen3-vl-pipeline-stages": "0.32.0",
}


def test_a_failure_names_no_end_of_a_release_outside_its_range() -> None:
    assert {failure.id for failure in FAILURES if failure.versions} == set(RANGES)
    for name, later in RANGES.items():
        line = next(case for case in LINES if case["id"] == name)
        for version, is_named in ((line["version"], True), ("", True), (later, False)):
            found = reader(line.get("engine", "vllm"), version).read(line["text"].splitlines(), ProcessEnd(1)).diagnosis
            assert (found is not None and found.id == name) is is_named, (name, version)


def test_a_development_version_is_compared_and_one_that_is_none_is_not() -> None:
    failure = next(failure for failure in FAILURES if failure.id == "drafts-beyond-budget")
    assert failure.concerns("vllm", "0.19.1rc1.dev110+gb55d830ec")
    assert not failure.concerns("vllm", "0.33.0")
    assert failure.concerns("vllm", "aeon-of-june")


def test_the_log_says_more_than_the_exit_code() -> None:
    diagnosis = reader().read(["torch.OutOfMemoryError: CUDA out of memory."], ProcessEnd(137)).diagnosis
    assert diagnosis is not None
    assert diagnosis.id == "gpu-out-of-memory"


def test_a_line_that_is_said_by_every_worker_is_shown_once() -> None:
    lines = [
        f"(Worker_TP{n} pid=2{n}) ERROR 08-19 10:11:5{n} [core.py:1348] torch.OutOfMemoryError: CUDA out of memory."
        for n in range(4)
    ]
    assert reader().read(lines).lines == ("torch.OutOfMemoryError: CUDA out of memory.",)


CORE = "(EngineCore pid=24019) ERROR 11-21 11:01:56 [core.py:1348] "
API = "(APIServer pid=23767) "
UNKNOWN = [
    f"{CORE}EngineCore failed to start.",
    f"{CORE}Traceback (most recent call last):",
    f'{CORE}  File "/x/vllm/v1/engine/core.py", line 1331, in run',
    f"{CORE}    engine_core = EngineCoreProc(*args, **kwargs)",
    f'{CORE}  File "/x/vllm/moon/new.py", line 7, in load',
    f'{CORE}    raise ValueError("the moon is full")',
    f"{CORE}ValueError: the moon is full",
    f"{API}Traceback (most recent call last):",
    f'{API}  File "/x/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup',
    f"{API}    raise RuntimeError(",
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'Core': 1}}",
]


def test_of_an_unknown_failure_the_first_exception_is_told_and_no_echo_of_it() -> None:
    findings = reader().read([*UNKNOWN, *[f"INFO 11-21 11:02:0{n} [x.py:1] shutting down" for n in range(10)]])
    assert findings.diagnosis is None
    assert findings.lines == (
        '  File "/x/vllm/moon/new.py", line 7, in load',
        '    raise ValueError("the moon is full")',
        "ValueError: the moon is full",
    )


def key_lines(lines: Sequence[str]) -> tuple[str, ...]:
    return decisive_lines(Collector().read(lines).evidence())


def test_lines_that_differ_by_a_number_are_told_once() -> None:
    assert key_lines(["error: slot 1 failed", "error: slot 2 failed"]) == ("error: slot 1 failed",)


def test_what_pydantic_says_below_an_exception_is_told() -> None:
    lines = ("pydantic_core._pydantic_core.ValidationError: 1 validation error for X", "  Value error, no. [type=y]")
    assert key_lines(lines) == lines


def test_a_traceback_that_is_cut_off_shows_what_stood_before_it() -> None:
    frames = [f'  File "/x/vllm/{number}.py", line {number}, in run' for number in range(30)]
    before = "INFO 08-02 02:39:50 [__init__.py:248] No platform detected, vLLM is running on UnspecifiedPlatform"
    lines = reader().read([before, "Traceback (most recent call last):", *frames], ProcessEnd(1)).lines
    assert "No platform detected, vLLM is running on UnspecifiedPlatform" in lines


def test_a_log_without_errors_gives_its_last_lines() -> None:
    assert key_lines(["one", "", "two"]) == ("one", "two")


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "a.*b.*c", r"(?P<x>a)\1", "(?:ab)*c", "a*", "(", r"(?P<x>a)(?P=x)", "(ab){2,}"]
)
def test_a_pattern_that_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError):
        Failure(id="x", pattern=pattern, cause="a cause of it", do="what to do", source="here")


@pytest.mark.parametrize("change", [{"pattern": ""}, {"do": "set it to {nothing}"}, {"versions": "new"}, {"id": "A b"}])
def test_a_row_that_says_too_little_or_fills_what_it_does_not_find_is_refused(change: dict[str, str]) -> None:
    row = {"id": "x", "pattern": "abc", "cause": "a cause of it", "do": "what to do", "source": "here"}
    with pytest.raises(ValidationError):
        Failure.model_validate(row | change)


def test_a_fix_may_not_touch_other_settings() -> None:
    row = {"id": "x", "pattern": "abc", "cause": "a cause of it", "do": "what to do", "source": "here"}
    with pytest.raises(ValidationError):
        Failure.model_validate(row | {"fix": {"DFLASH_BIND": "0.0.0.0"}})


LITERALS = [re.sub(r"\\.|[\[\](){}?*+|^$]|\(\?P<\w+>", "", failure.pattern)[:60] for failure in FAILURES]


@given(st.lists(st.one_of(st.binary(max_size=300), st.sampled_from([line.encode() for line in LITERALS])), max_size=40))
@settings(deadline=None, max_examples=150)
def test_any_bytes_are_read(parts: list[bytes]) -> None:
    text = b"".join(parts).decode("utf-8", "replace")
    findings = reader().read(text.split("\n"), ProcessEnd(1), text.split("\n"))
    assert len(findings.lines) <= 12
    reader().costs(text.split("\n"))


@each_of((failure for failure in FAILURES if failure.pattern), name=lambda failure: failure.id)
def test_a_line_made_against_a_pattern_is_searched_in_no_time(failure: Failure) -> None:
    # what a pattern begins with, over and over: where it may begin anywhere and ends nowhere, searches take longest
    pieces = re.split(r"[\[\](){}?*+|^$\\]", failure.pattern)
    for piece in {piece for piece in pieces if piece}:
        line = (piece * 2000)[:2000]
        begun = time.process_time()
        failure.compiled.search(line)
        assert time.process_time() - begun < 0.25


def test_the_time_grows_with_the_log_and_not_with_its_square() -> None:
    def seconds(lines: int) -> float:
        log = [f"WARNING 11-21 11:02:00 [x.py:1] a line about Selected backend number {n}" for n in range(lines)]
        begun = time.process_time()
        reader().read(log)
        return time.process_time() - begun

    seconds(100)
    # four times as much as a linear search needs; the fastest of five, since other processes take the caches
    assert min(seconds(8000) for _ in range(5)) < 32 * max(min(seconds(1000) for _ in range(5)), 0.02)


def test_thousands_of_lines_made_against_one_pattern_are_searched_in_bounded_time() -> None:
    failure = Failure(id="x", pattern="a[ab]+c", cause="it did not start", do="start it again", source="here")
    lines = [f"{number:05}{'a' * 1990}" for number in range(20_000)]
    found = LogReader([failure], "vllm", "0.33.0").read([*lines, "xabc"], ProcessEnd(1))
    assert found.diagnosis is not None
    assert found.diagnosis.evidence == ("xabc",)


def test_the_messages_of_a_usual_log_are_searched_whole() -> None:
    usual = [f"{number} {'x' * 150}" for number in range(10_000)] + ["y" * LONGEST_LINE] * 10
    assert searchable(usual) == tuple(usual)
    assert sum(len(line) ** 2 for line in searchable(["z" * LONGEST_LINE] * 1000)) <= MOST_WORK


def test_the_log_that_the_page_works_through_has_the_cause_that_it_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "diagnosis.md").read_text(encoding="utf-8")
    (log,) = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = explained(log.splitlines()).diagnosis
    assert found is not None
    assert f"`{found.id}`" in page
    assert found.cause in page
