"""A process that is asked for the engine's configuration may crash, hang, write garbage or write without end."""

import os
import sys
import time
from pathlib import Path

import pytest

from dflash_deploy.operations.ask_engine import MOST_OUTPUT, Heard, run_question
from dflash_deploy.serve.answer import MARK

LONG = 120.0  # seconds that no question of these tests takes


def asked(script: str, *, seconds: float = LONG) -> Heard:
    return run_question([sys.executable, "-c", script], dict(os.environ), seconds=seconds)


def test_the_last_answer_of_the_output_is_read() -> None:
    answer = """from dflash_deploy.serve.answer import accepted, refused
print("INFO something"); refused("first"); print("no end of line", end=""); accepted({"attention_backend": "CPU_ATTN"})
"""
    heard = asked(answer)
    assert heard.answer is not None
    assert (heard.answer.refused, dict(heard.answer.decided)) == ("", {"attention_backend": "CPU_ATTN"})


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("raise RuntimeError('no GPU')", 1),
        ("print('nothing that is an answer')", 0),
        (f"print({MARK!r} + 'not JSON')", 0),
        (f"print({MARK!r} + '{{\"decided\": 7}}')", 0),
        (f"print({MARK!r} + '[' * 100_000)", 0),
        ("import os; os.write(1, bytes(range(256)) * 100)", 0),
    ],
)
def test_a_crash_and_garbage_are_no_answer(script: str, status: int) -> None:
    heard = asked(script)
    assert (heard.answer, heard.status) == (None, status)


def test_an_answer_before_a_crash_is_none() -> None:
    heard = asked("from dflash_deploy.serve.answer import accepted; accepted({}); import os; os.abort()")
    assert (heard.answer, heard.status) == (None, -6)


def test_the_end_of_the_output_is_kept_and_no_more() -> None:
    heard = asked(f"import sys; sys.stdout.write('x' * {3 * MOST_OUTPUT} + 'end')")
    assert len(heard.output) <= MOST_OUTPUT
    assert heard.output.endswith("xend")


@pytest.mark.parametrize("script", ["while True: print('x' * 1000)", "import time; time.sleep(3600)"])
def test_what_does_not_end_is_ended_at_its_limit(script: str) -> None:
    heard = asked(script, seconds=2.0)
    assert (heard.status, heard.answer) == (None, None)
    assert len(heard.output) <= MOST_OUTPUT


def test_a_process_that_closes_its_output_and_hangs_is_ended() -> None:
    heard = asked("import os, time; os.close(1); os.close(2); time.sleep(3600)", seconds=2.0)
    assert heard.status is None


def test_what_the_process_started_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(3600)"
    script = f"""import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}])
while not pathlib.Path({str(pid)!r}).exists(): time.sleep(0.01)
"""
    # the child holds the pipe open, which does not delay the end
    assert asked(script).status == 0
    deadline = time.monotonic() + LONG
    while Path(f"/proc/{pid.read_text()}/status").exists() and "Z (zombie)" not in _status(pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return "Z (zombie)"
