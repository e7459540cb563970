"""What a session of processes holds in memory."""

import os
import subprocess
import sys

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
    memory = leader.memory()
    process.communicate("\n")
    assert memory is not None
    assert 96 * MIB < memory < 160 * MIB
    # the session is gone, and one that is no leader has none of its own
    assert leader.memory() is None
    one = ProcessId.of(os.getpid())
    assert one is not None
    assert (one.memory() is None) is (os.getsid(0) != os.getpid())
