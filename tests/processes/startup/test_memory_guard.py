"""A process that eats the machine's memory, and is stopped before it has all that it wants."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.diagnosis.diagnose import LogReader
from dflash_deploy.errors import EngineStopped, ExitCode
from dflash_deploy.host.gpu import available_memory
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.runtime.native_process import Invocation, NativeProcess
from dflash_deploy.runtime.protocol import EngineState, LogPage
from dflash_deploy.startup.progress import Phases, Timekeeper
from dflash_deploy.startup.start import MemoryGuard, Waiting
from tests.processes.runtime.test_supervisor import eventually
from tests.support.scripted import ScriptedRuntime

MIB = 2**20
EATS = 6144 * MIB  # more than engines of other tests give back meanwhile
SPARED = 600 * MIB

EATER = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an engine that loads does not end by itself either
held = []
for _ in range({EATS // (32 * MIB)}):
    held.append(b"x" * {32 * MIB})
    print(len(held) * 32, "MiB", flush=True)
    time.sleep(0.1)  # as fast as weights are read
print("all of it", flush=True)
signal.pause()
"""


class Supervised(ScriptedRuntime):
    """The native runtime's process without a deployment: an eater in place of an engine."""

    def __init__(self, state: Path) -> None:
        super().__init__([EngineState("running")])
        self.process = NativeProcess(state, Redactor([]), grace=45.0)
        launch = Invocation(dict(os.environ), "one", "127.0.0.1:1", state, (sys.executable, "-c", EATER))
        self.process.launch(launch, lambda line: None)

    def halt(self, *, at_once: bool = False) -> None:
        self.process.halt(at_once=at_once)

    def state(self) -> EngineState:
        return self.process.state()

    def read_log(self, cursor: str = "") -> LogPage:
        return self.process.read_log(cursor)


@pytest.fixture
def eater(tmp_path: Path) -> Iterator[Supervised]:
    runtime = Supervised(tmp_path / "engine")
    yield runtime
    runtime.halt(at_once=True)


def test_an_engine_that_takes_the_last_of_the_memory_is_stopped_before_it_has_it(eater: Supervised) -> None:
    before = available_memory()
    assert before is not None
    guard = MemoryGuard(partial(eater.halt, at_once=True), "lower it", least=before - SPARED)
    reader = LogReader(load_catalog().failures, "vllm", "0.33.0")
    with Endpoint("http://127.0.0.1:9", Secret("key-of-the-test"), "m") as endpoint:
        waiting = Waiting(
            eater, endpoint, reader, Phases("vllm"), patience=60, times=Timekeeper(lambda shown: None), guard=guard
        )
        with pytest.raises(EngineStopped, match="of the machine's memory were left") as stopped:
            waiting.until_ready("?")
    assert stopped.value.exit_code == ExitCode.NOT_READY
    assert stopped.value.hint == "lower it"
    assert not eater.state().alive
    lines = eater.read_log().lines
    assert lines
    assert "all of it" not in lines
    # what it held is free again
    eventually(lambda: (available_memory() or 0) > before - SPARED)
