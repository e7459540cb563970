"""The part of an engine whose code failed: named last, as likely, and never for a request or a survived exception."""

import pytest

from dflash_deploy.catalog.failures import Failure
from dflash_deploy.diagnosis.diagnose import ProcessEnd
from dflash_deploy.errors import EngineDied
from dflash_deploy.startup.start import explain
from tests.unit.startup.explained import FAILED, FAILURES, explained

PARTS = [failure for failure in FAILURES if failure.part]

CORE = "(EngineCore pid=24) ERROR 11-21 11:01:56 [core.py:1348] "
API = "(APIServer pid=2) ERROR 11-21 11:01:57 [serving.py:9] "
FATAL = f"{CORE}EngineCore encountered a fatal error."
SERVES = "(APIServer pid=2) INFO:     Application startup complete."
ADAPTERS = "/x/vllm/lora/ops/triton_ops/lora_shrink_op.py"
SCHEDULER = "/x/vllm/v1/core/sched/scheduler.py"


def raised(place: str, text: str = "KeyError: 'the moon'", prefix: str = CORE, code: str = "x = y[z]") -> list[str]:
    frame = ["Traceback (most recent call last):", f'  File "{place}", line 9, in forward', f"    {code}", text]
    return [prefix + line for line in frame]


def part(log: list[str], end: ProcessEnd = FAILED, engine: str = "vllm") -> str:
    found = explained(log, end, engine).diagnosis
    assert found is None or found.part
    return "" if found is None else found.id


def test_a_part_is_likely_and_the_decisive_lines_are_shown() -> None:
    said = "ValueError: rank 512 is larger than 256"
    found = explained([FATAL, *raised(ADAPTERS, said)], FAILED)
    assert found.diagnosis is not None
    assert (found.diagnosis.id, found.confidence) == ("adapter-code-failed", "likely")
    assert "(ValueError)" in found.diagnosis.cause
    assert found.lines == (f'  File "{ADAPTERS}", line 9, in forward', "    x = y[z]", said)
    assert found.diagnosis.document()["evidence"] == [f'File "{ADAPTERS}", line 9, in forward']


def test_up_shows_the_decisive_lines_of_a_part_and_how_to_report_it() -> None:
    problem = explain(EngineDied, "the engine ended", explained([FATAL, *raised(ADAPTERS)], FAILED))
    assert "KeyError: 'the moon'" in problem.detail
    assert "`dflash-deploy logs --bundle`" in problem.detail
    assert "/reference/failures.html#adapter-code-failed" in problem.detail
    assert problem.hint is not None
    assert "--enable-lora" in problem.hint


@pytest.mark.parametrize("end", [FAILED, ProcessEnd()])
def test_only_the_frame_that_raised_counts(end: ProcessEnd) -> None:
    log = [FATAL, *raised(ADAPTERS)]
    inner = [f'{CORE}  File "/x/torch/nn/module.py", line 9, in call', f"{CORE}    return f(x)"]
    assert part(log, end) == "adapter-code-failed"
    assert part([*log[:-1], *inner, log[-1]], end) == ""


def test_a_frame_that_is_followed_by_the_code_of_a_missing_one_names_no_part() -> None:
    log = [FATAL, *raised(ADAPTERS, "AssertionError", code="self.connector.build()")]
    log.insert(-1, f"{CORE}    assert keys == blocks")
    assert part(log) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-out-of-memory"),
        ("RuntimeError: The size of tensor a (2) must match the size of tensor b (4) at", "tensor-sizes-differ"),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "results-not-numbers"),
    ],
)
def test_every_other_row_counts_more(text: str, name: str) -> None:
    found = explained([FATAL, *raised(SCHEDULER, text)], FAILED)
    assert found.diagnosis is not None
    assert (found.diagnosis.id, found.diagnosis.part) == (name, False)


def test_the_cause_of_the_exception_counts_more_than_its_place() -> None:
    full = raised("/x/y.py", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    chained = f"{CORE}The above exception was the direct cause of the following exception:"
    found = explained([FATAL, *full, chained, *raised(SCHEDULER)], FAILED).diagnosis
    assert found is not None
    assert found.id == "gpu-out-of-memory"


def test_memory_that_the_kernel_reclaims_counts_more() -> None:
    found = explained([FATAL, *raised(SCHEDULER)], ProcessEnd(137, out_of_memory=True)).diagnosis
    assert found is not None
    assert not found.part


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: cannot import the moon",
        "ModuleNotFoundError: No module named 'moon'",
        "PermissionError: [Errno 13] the moon",
        "RuntimeError: CUDA driver error: device not ready",
        "torch.AcceleratorError: the moon",
        "RuntimeError: NCCL error: the moon",
    ],
)
def test_an_exception_of_the_surroundings_names_no_part(text: str) -> None:
    found = explained([FATAL, *raised(SCHEDULER, text)], FAILED)
    assert found.diagnosis is None or not found.diagnosis.part
    assert text in found.lines


@pytest.mark.parametrize("end", [ProcessEnd(), FAILED, ProcessEnd(143)])
def test_a_request_that_fails_in_a_running_server_names_no_part(end: ProcessEnd) -> None:
    refused = '(APIServer pid=2) INFO:     1.2.3.4:5 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    for prefix in (API, "", CORE):
        assert part([SERVES, *raised("/x/vllm/multimodal/parse.py", prefix=prefix), refused], end) == ""


def test_a_core_that_fails_while_it_serves_names_its_part_whatever_requests_failed_before() -> None:
    request = raised("/x/vllm/multimodal/parse.py", prefix=API)
    for end in (ProcessEnd(), FAILED):
        assert part([SERVES, *request, FATAL, *raised(SCHEDULER)], end) == "scheduler-code-failed"


def test_a_start_that_is_not_known_to_have_ended_names_no_part() -> None:
    log = raised("/x/vllm/config/model.py", prefix="(APIServer pid=2) ")
    assert part(log, ProcessEnd()) == ""
    assert part(log) == "settings-code-failed"


def test_an_exception_that_its_process_survived_is_no_end() -> None:
    log = raised("/x/vllm/config/model.py", prefix=API)
    calm = [f"(APIServer pid=2) INFO 11-21 11:02:0{number} [x.py:1] step {number}" for number in range(6)]
    others = [line.replace("APIServer pid=2", "Worker pid=3") for line in calm]
    assert part([*log, *calm]) == ""
    assert part([*log, *calm[:4], *others]) == "settings-code-failed"


def test_processes_that_fail_in_different_parts_name_none() -> None:
    other = "(Worker_TP1 pid=25) ERROR 11-21 11:01:56 [core.py:1348] "
    assert part([FATAL, *raised(SCHEDULER), *raised(SCHEDULER, prefix=other)]) == "scheduler-code-failed"
    assert part([FATAL, *raised(SCHEDULER), *raised(ADAPTERS, prefix=other)]) == ""


@pytest.mark.parametrize("indent", ["  ", ""])
@pytest.mark.parametrize("marks", [[], ["    ^^^^~~~"]])
def test_a_traceback_without_a_beginning_keeps_the_frame_that_raised(indent: str, marks: list[str]) -> None:
    outer = [f'{indent}File "/x/torch/_ops.py", line 8, in call', "    return self.op(x)"]
    inner = [f'{indent}File "{ADAPTERS}", line 9, in forward', "    assert of_all"]
    found = explained([CORE + line for line in (*outer, *marks, *inner, *marks, "AssertionError")], FAILED)
    assert found.diagnosis is not None
    assert found.diagnosis.id == "adapter-code-failed"
    assert found.lines[:3] == (*inner, "AssertionError")
    missing = [CORE + line for line in (*inner, "    x = of[none]", *marks, "KeyError: 'none'")]
    assert part(missing) == ""
    assert "    x = of[none]" in explained(missing, FAILED).lines


def test_frames_of_a_warning_name_no_part() -> None:
    warned = raised(ADAPTERS, prefix="(EngineCore pid=24) WARNING 11-21 11:01:56 [x.py:1] ")
    assert part([*warned, f"{CORE}ValueError: the moon is full"]) == ""


def test_a_scheduler_of_sglang_names_its_part() -> None:
    log = [
        "[2026-06-17 09:57:10 TP0] The server is fired up and ready to roll!",
        "[2026-06-17 09:57:14 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        *raised("/x/sglang/srt/lora/mem_pool.py", prefix="")[1:],
    ]
    kills = "[2026-06-17 09:57:15] Received sigquit from a child process. It usually means the child failed."
    assert part(log, FAILED, "sglang") == ""
    older = "[2026-03-06 00:37:19] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    for told in (kills, older):
        assert part([*log, told], FAILED, "sglang") == "adapter-code-failed"


def test_remedies_are_those_of_the_engine() -> None:
    for engine, argument in (("vllm", "--lora-modules"), ("sglang", "--lora-paths")):
        known = next(failure for failure in PARTS if failure.id == "adapter-code-failed")
        assert argument in known.remedy(engine)


@pytest.mark.parametrize("row", [pytest.param(one, id=one.id) for one in PARTS])
def test_a_part_says_what_failed_and_no_reason(row: Failure) -> None:
    assert "failed ({exception}): a defect of this release, or" in row.cause
    assert not row.fix
    assert set(row.engines) == {"vllm", "sglang"}
    assert "DFLASH_ENGINE" in row.do


@pytest.mark.parametrize(
    "place",
    [
        "/x/vllm/entrypoints/cli/main.py",
        "/x/vllm/entrypoints/openai/api_server.py",
        "/x/vllm/v1/engine/core.py",
        "/x/vllm/model_executor/models/registry.py",
        "/x/vllm_ascend/lora/utils.py",
        "/home/of/lora/train.py",
        "/x/sglang/srt/model_executor/cuda_graph_runner.py",
        "/x/sglang/srt/utils/common.py",
    ],
)
def test_code_that_is_of_no_part_or_calls_all_of_them_names_none(place: str) -> None:
    for engine in ("vllm", "sglang"):
        assert part([FATAL, *raised(place)], FAILED, engine) == ""
