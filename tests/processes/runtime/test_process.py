"""What a session of processes holds in memory."""

import os
import subprocess
import sys
from pathlib import Path

from dflash_deploy.runtime.process import ProcessId

MIB = 2**20

PARENT_AND_CHILD = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "held = bytearray(b'x' * (96 << 20)); print('held', flush=True); input()"],
    stdin=sys.stdin, stdout=subprocess.PIPE,
)
print(child.stdout.readline().decode(), flush=True)
child.wait()
"""


def test_memory_is_that_of_all_processes_of_the_session() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT_AND_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    leader = ProcessId.of(process.pid)
    assert leader is not None
    memory, session = leader.memory(), leader.session()
    process.communicate("\n")
    assert memory is not None
    assert 96 * MIB < memory < 160 * MIB
    # parent and child
    assert len(session) == 2
    assert process.pid in session
    # the session is gone, and one that is no leader has none of its own
    assert leader.memory() is None
    one = ProcessId.of(os.getpid())
    assert one is not None
    assert (one.memory() is None) is (os.getsid(0) != os.getpid())


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    # a name is cut after 15 bytes, which may be inside a character, and may hold brackets
    program = tmp_path / (") é" * 5)[:-1]
    program.write_text(f"#!{sys.executable}\nprint('runs', flush=True)\ninput()\n")
    program.chmod(0o755)
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "runs"
        one = ProcessId.of(process.pid)
        assert one is not None
        assert one.alive()
        assert one.memory()
        process.communicate("\n")
