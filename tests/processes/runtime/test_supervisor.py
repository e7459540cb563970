"""The supervisor of a native engine, with small programs in the engine's place."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_deploy.runtime.log import read_page
from dflash_deploy.runtime.process import ProcessId

PROGRAM = """
import sys
from pathlib import Path
from dflash_deploy.runtime.supervisor import supervise
end = supervise(Path(sys.argv[1]), [sys.executable, "-uc", sys.argv[2]])
print(end.exit_code, end.asked)
"""

# Starts a supervisor of this program; a second one is run by the supervisor itself before.
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / ".env").write_text("VLLM_API_KEY=a-very-secret-key\n")
    started: list[subprocess.Popen[str]] = []

    def run(engine: str, before: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\n{PROGRAM}", str(tmp_path), engine],
            env=os.environ | {"DFLASH_SECRETS_FILE": str(tmp_path / ".env")},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)


def test_the_log_is_private_and_without_the_key(start: Start, tmp_path: Path) -> None:
    process = start("print('api_key: a-very-secret-key'); raise SystemExit(7)")
    assert process.communicate()[0].strip() == "7 False"
    log = tmp_path / "engine.log"
    assert log.read_text() == "api_key: [redacted]\n"
    assert log.stat().st_mode & 0o077 == 0


def test_a_log_that_cannot_be_written_does_not_end_the_engine(start: Start, tmp_path: Path) -> None:
    # as on a full disk: no file of this process may grow beyond 100 bytes
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    process = start("for n in range(50): print('a line of the log', n)\nraise SystemExit(7)", limit)
    assert process.communicate()[0].strip() == "7 False"
    assert (tmp_path / "engine.log").stat().st_size == 100


def test_a_log_is_continued_in_a_new_file_that_a_reader_finds(start: Start, tmp_path: Path) -> None:
    small = "from dflash_deploy.runtime import log; log.PART = 1000"
    process = start("for n in range(100): print('a-very-secret-key', n)\nraise SystemExit(7)", small)
    assert process.communicate()[0].strip() == "7 False"
    assert {file.name for file in tmp_path.glob("*.log*")} == {"engine.log", "engine.log.1"}
    assert read_page(tmp_path / "engine.log", "", str).lines == tuple(f"[redacted] {n}" for n in range(100))


def test_a_request_to_end_reaches_the_engine(start: Start, tmp_path: Path) -> None:
    process = start("import time; print('up'); time.sleep(600)")
    eventually(lambda: "up" in (tmp_path / "engine.log").read_text() if (tmp_path / "engine.log").exists() else False)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0].strip() == f"{-signal.SIGTERM} True"


def test_an_engine_does_not_outlive_its_supervisor(start: Start, tmp_path: Path) -> None:
    process = start("import os, time; print(os.getpid()); time.sleep(600)")
    log = tmp_path / "engine.log"
    eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    engine = ProcessId.of(int(log.read_text()))
    assert engine is not None
    process.kill()
    process.wait()
    eventually(lambda: not engine.alive())


# An engine with a worker that hangs, deaf to requests to end, and holds the output open.
ORPHAN = """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid())
    time.sleep(300)
time.sleep(300)
"""


def test_a_worker_that_hangs_ends_with_the_first_process(start: Start, tmp_path: Path) -> None:
    process = start(f"import os; print(os.getpid()){ORPHAN}")
    log = tmp_path / "engine.log"
    eventually(lambda: log.exists() and log.read_text().count("\n") == 2)
    first, worker = map(int, log.read_text().split())
    hanging = ProcessId.of(worker)
    os.kill(first, signal.SIGKILL)
    assert process.communicate(timeout=120)[0].strip() == f"{-signal.SIGKILL} False"
    assert hanging is not None
    assert not hanging.alive()


# An engine that misses SIGTERM while its core starts: vLLM 0.32 until its core answers (api_server/entry.py).
DEAF = """
import os, signal, time
from dflash_deploy.runtime import supervisor
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(300)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(300)
"""


def test_an_engine_that_misses_the_request_to_end_is_killed_with_its_processes(start: Start, tmp_path: Path) -> None:
    process = start(DEAF, "from dflash_deploy.runtime import supervisor; supervisor.STARTING = 0.2")
    log = tmp_path / "engine.log"
    eventually(lambda: log.exists() and log.read_text().count("\n") == 2)
    engines = [ProcessId.of(int(line)) for line in log.read_text().split()]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0].strip() == f"{-signal.SIGKILL} True"
    assert all(engine is not None for engine in engines)
    eventually(lambda: not any(engine.alive() for engine in engines if engine is not None))


def test_an_engine_that_serves_gets_more_time(start: Start, tmp_path: Path) -> None:
    """Its streams end first: here it takes longer than one that starts may take."""
    slow = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), exit(5)))\n"
    serving = "s.STARTING = 0.1; s.supervise.__defaults__ = (lambda: True,)"
    process = start(
        f"{slow}print('up'); time.sleep(300)", f"from dflash_deploy.runtime import supervisor as s; {serving}"
    )
    log = tmp_path / "engine.log"
    eventually(lambda: log.exists() and "up" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0].strip() == "5 True"


def test_a_number_used_again_is_another_process() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.alive()
    assert not ProcessId(me.pid, me.started - 1).alive()
    assert ProcessId.of(2**22 + 1) is None


def test_the_way_an_engine_ended_is_written_down(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_deploy.runtime.supervisor", str(tmp_path), "config", "127.0.0.1:8000"],
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "run.json").read_text())["address"] == "127.0.0.1:8000"
    # without MODEL_PATH, serve refuses with 3
    assert json.loads((tmp_path / "exit.json").read_text()) == {"exit_code": 3, "asked": False}
