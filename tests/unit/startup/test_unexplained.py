"""Beside an exception that no row explains, what a row matches may be a consequence or survived: it names nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_deploy.diagnosis.diagnose import ProcessEnd
from tests.support.rows import each_of, first_of, rows_of
from tests.unit.startup.explained import FAILED, FAILURES, explained

CORE = "(EngineCore pid=274) ERROR 08-03 17:46:10 [core.py:1136] "
WORKER = "(Worker_TP1 pid=365) ERROR 08-03 17:46:12 [multiproc_executor.py:870] "
CALM = [f"(EngineCore pid=274) INFO 08-03 17:46:1{number} [x.py:1] step {number}" for number in range(6)]
SCHEDULER = "[2026-06-17 09:57:14 TP0] "
MOON = "KeyError: 'the moon'"


def raised(prefix: str, *text: str) -> list[str]:
    """Return what a process logs of an exception with an unknown place."""
    frame = (
        "Traceback (most recent call last):",
        '  File "/x/moon/new.py", line 7, in load',
        "    value = table[name]",
    )
    return [prefix + line for line in (*frame, *text)]


Row = tuple[str, Sequence[str]]  # the id of a row of the catalog, and a line that it matches
ROWS = {failure.id: failure for failure in FAILURES}
CASES: list[dict[str, Any]] = [
    case
    for case in rows_of(Path(__file__).with_name("failure_lines.yaml"))
    if case.get("text") and ROWS[case["id"]].effect == "ends" and ROWS[case["id"]].where == "log"
]
OF_VLLM, OF_SGLANG = (
    # one line of each row: the last one
    [
        (name, text.splitlines())
        for name, text in {
            case["id"]: case["text"]
            for case in CASES
            if engine in (case.get("engine"), *ROWS[case["id"]].engines) or not ROWS[case["id"]].engines
        }.items()
    ]
    for engine in ("vllm", "sglang")
)


@each_of(OF_VLLM, name=first_of)
def test_what_a_process_survived_names_nothing(row: Row) -> None:
    _, text = row
    of_core = [CORE + line for line in text]
    end = raised(CORE, MOON)
    for before in (of_core, raised(CORE, *text), [*of_core, *CALM], [*raised(CORE, *text), *CALM]):
        found = explained([*before, *end], FAILED)
        assert found.diagnosis is None
        assert MOON in found.lines


@each_of(OF_VLLM, name=first_of)
def test_what_another_process_raises_afterwards_names_nothing(row: Row) -> None:
    _, text = row
    found = explained([*raised(CORE, MOON), *raised(WORKER, *text)], FAILED)
    assert found.diagnosis is None
    assert MOON in found.lines


@each_of(OF_VLLM, name=first_of)
def test_what_was_raised_before_an_unknown_exception_is_at_most_likely(row: Row) -> None:
    _, text = row
    assert explained([*raised(WORKER, *text), *raised(CORE, MOON)], FAILED).confidence != "named"


@each_of(OF_SGLANG, name=first_of)
def test_an_error_of_sglang_before_an_unknown_exception_names_nothing(row: Row) -> None:
    _, text = row
    log = [f"{SCHEDULER}ERROR: {line}" for line in text]
    log += [f"{SCHEDULER}Scheduler hit an exception: Traceback (most recent call last):", *raised("", MOON)[1:]]
    found = explained(log, FAILED, "sglang")
    assert found.diagnosis is None
    assert MOON in found.lines


CRASHED = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def test_a_family_of_failures_is_not_named_beside_an_unknown_exception() -> None:
    for log in ([*raised(WORKER, CRASHED), *raised(CORE, MOON)], [*raised(CORE, MOON), *raised(WORKER, CRASHED)]):
        assert explained(log, FAILED).diagnosis is None
    known = explained([*raised(WORKER, CRASHED), *raised(CORE, CRASHED)], FAILED)
    assert known.diagnosis is not None
    assert (known.diagnosis.id, known.confidence) == ("kernel-launch-failed", "named")


def test_a_family_of_failures_is_not_named_beside_an_unknown_error() -> None:
    corrupted = "free(): invalid pointer"
    assert explained([corrupted], ProcessEnd(134), "llamacpp").diagnosis is not None
    told = explained(["error: the moon is full", corrupted], ProcessEnd(134), "llamacpp")
    assert told.diagnosis is None
    assert "error: the moon is full" in told.lines


def test_what_docker_writes_around_an_error_hides_no_family() -> None:
    log = [
        "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI",
        "nvidia-container-cli: device error: the moon: unknown",
    ]
    found = explained(log, FAILED).diagnosis
    assert found is not None
    assert found.id == "container-hook-failed"


def test_a_known_cause_of_an_unknown_exception_is_likely() -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    chained = ["", "The above exception was the direct cause of the following exception:", ""]
    found = explained([*raised(CORE, full), *(CORE + line for line in chained), *raised(CORE, MOON)], FAILED)
    assert found.diagnosis is not None
    assert (found.diagnosis.id, found.confidence) == ("gpu-out-of-memory", "likely")


def test_an_assertion_of_a_kernel_does_not_explain_an_exception_of_another_kind() -> None:
    asserts = (
        "/pytorch/x.cu:16: vectorized_gather_kernel: Assertion `vectorized gather kernel index out of bounds` failed"
    )
    crashed = raised(CORE, "torch.AcceleratorError: CUDA error: device-side assert triggered")
    found = explained([asserts, *crashed], FAILED).diagnosis
    assert found is not None
    assert found.id == "table-without-that-entry"
    assert explained([asserts, *raised(CORE, MOON)], FAILED).diagnosis is None


def test_an_exception_of_a_request_does_not_hide_how_the_engine_ended() -> None:
    server = raised("(APIServer pid=1) ERROR 08-03 17:40:10 [serving.py:12] ", MOON)
    full = raised(CORE, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    found = explained([*server, *full], FAILED)
    assert found.diagnosis is not None
    assert (found.diagnosis.id, found.confidence) == ("gpu-out-of-memory", "named")
