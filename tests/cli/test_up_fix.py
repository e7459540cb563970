"""`up` on an engine that fails by a script: what is said, and what `--fix` writes and does not write."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment, last_good
from dflash_deploy.errors import EngineNotReady, ExitCode
from dflash_deploy.runtime.protocol import EngineState, LogPage
from tests.support.cli import edit_env, initialise, invoke
from tests.support.ports import free_port
from tests.support.scripted import ScriptedRuntime, listening, play

OUT_OF_MEMORY = "(EngineCore pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
ON_GB10 = "torch.ops._vllm_fa2_C.varlen_fwd"


class Stage:
    """A deployment whose engines fail with these lines, one after the other, and then answer."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self._running = EngineState("running", address=f"127.0.0.1:{port}")
        self._fails: list[str] = []
        self.started = 0

    def fails_with(self, *lines: str) -> None:
        self._fails = list(lines)

    def runtime_for(self, *_: object) -> ScriptedRuntime:
        stage = self

        class Counted(ScriptedRuntime):
            def start(self, narrate: object) -> bool:
                stage.started += 1
                if stage._fails:
                    line = stage._fails.pop(0)
                    self._states = [stage._running, EngineState("exited", exit_code=1)]
                    self._pages = iter([(line,)])
                return True

        return Counted([self._running])

    def run(self, *options: str) -> tuple[ExitCode, dict[str, Any], str]:
        ran = invoke("up", "--json", "--dir", str(self.directory), *options)
        return ran.code, ran.document, ran.err


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    port = free_port()
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(port), at=tmp_path)
    played = Stage(tmp_path, port)
    play(monkeypatch, played.runtime_for)
    with listening(200, port=port):
        yield played


def env_of(stage: Stage) -> dict[str, str]:
    return dict(Deployment(stage.directory).values)


def test_without_fix_the_failure_says_what_fix_would_do_and_nothing_is_written(stage: Stage) -> None:
    before = (stage.directory / ".env").read_bytes()
    stage.fails_with(OUT_OF_MEMORY)
    code, document, shown = stage.run()
    assert code is ExitCode.NOT_READY
    assert document["error"]["message"].endswith("the GPU ran out of memory")
    offer = f"up --fix --dir {stage.directory}` writes MAX_NUM_BATCHED_TOKENS=1024 MAX_NUM_SEQS=2"
    assert offer in document["error"]["hint"]
    assert document["data"]["failure"] == "gpu-out-of-memory"
    assert "Tried to allocate 2.50 GiB" in shown
    assert (stage.directory / ".env").read_bytes() == before
    assert stage.started == 1


def test_fix_writes_the_named_lines_shows_them_and_tries_once_more(stage: Stage) -> None:
    file, before = stage.directory / ".env", (stage.directory / ".env").read_text()
    stage.fails_with(OUT_OF_MEMORY)
    _, document, shown = stage.run("--fix")
    assert document["data"]["fixed"]["changes"] == {"MAX_NUM_BATCHED_TOKENS": "1024", "MAX_NUM_SEQS": "2"}
    assert document["data"]["state"] == "ready"
    for line in ("-MAX_NUM_SEQS=4", "+MAX_NUM_SEQS=2", "-MAX_NUM_BATCHED_TOKENS=2048", "+MAX_NUM_BATCHED_TOKENS=1024"):
        assert line in shown.splitlines()
    expected = before.replace("MAX_NUM_SEQS=4", "MAX_NUM_SEQS=2").replace("BATCHED_TOKENS=2048", "BATCHED_TOKENS=1024")
    assert file.read_text() == expected
    assert (stage.directory / ".env.last").read_text() == before
    assert {path.stat().st_mode & 0o777 for path in (file, stage.directory / ".env.last")} == {0o600}
    assert Deployment(stage.directory).key.reveal() not in shown + json.dumps(document)


def test_an_engine_that_answers_everybody_is_not_taken_for_a_good_one(stage: Stage) -> None:
    # what plays the engine here asks for no key
    code, document, shown = stage.run()
    assert code is ExitCode.SMOKE_TEST
    assert document["data"]["state"] == "ready"
    failed = {check["name"] for check in document["data"]["checks"] if check["status"] == "failed"}
    assert "auth" in failed
    assert "the engine answers, but" in shown
    assert "dflash-deploy test" in document["error"]["hint"]
    # it is nothing to come back to, and asking again does not make it right
    assert last_good(Deployment(stage.directory)) is None
    again, _, _ = stage.run()
    assert again is ExitCode.SMOKE_TEST


def test_fix_is_applied_once(stage: Stage) -> None:
    stage.fails_with(OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY)
    code, document, _ = stage.run("--fix")
    assert code is ExitCode.NOT_READY
    assert stage.started == 2
    assert env_of(stage)["MAX_NUM_SEQS"] == "2"
    assert ".env.last is the file before" in document["error"]["hint"]


def test_a_fix_that_the_plan_would_refuse_is_not_written(stage: Stage) -> None:
    # TRITON_ATTN is the cure on GB10, and no processor has it
    before = (stage.directory / ".env").read_bytes()
    stage.fails_with(ON_GB10)
    code, document, _ = stage.run("--fix")
    assert code is ExitCode.NOT_READY
    assert "--fix knows no safe change" in document["error"]["hint"]
    assert (stage.directory / ".env").read_bytes() == before
    assert not (stage.directory / ".env.last").exists()
    assert stage.started == 1


def test_an_unknown_failure_is_left_alone(stage: Stage) -> None:
    stage.fails_with("ValueError: the moon is full")
    code, document, shown = stage.run("--fix")
    assert code is ExitCode.NOT_READY
    assert document["data"]["failure"] is None
    assert "the moon is full" in shown
    assert stage.started == 1


def test_a_size_that_is_left_to_the_engine_is_not_halved(stage: Stage) -> None:
    edit_env(stage.directory, MAX_NUM_SEQS="", MAX_NUM_BATCHED_TOKENS="")
    stage.fails_with(OUT_OF_MEMORY)
    code, document, _ = stage.run("--fix")
    assert code is ExitCode.NOT_READY
    assert "--fix knows no safe change" in document["error"]["hint"]


def test_what_an_earlier_engine_died_of_is_not_told_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # a container that is started anew goes on with the same log
    written = [OUT_OF_MEMORY]

    class SameLog(ScriptedRuntime):
        def start(self, narrate: object) -> bool:
            self._states = [stage._running, EngineState("exited", exit_code=1)]
            written.append("ValueError: the moon is full")
            return True

        def next_line(self) -> str:
            return str(len(written))

        def read_log(self, cursor: str = "") -> LogPage:
            return LogPage(tuple(written[int(cursor or 0) :]), str(len(written)))

    play(monkeypatch, lambda *_: SameLog([stage._running]))
    _, document, shown = stage.run()
    assert document["data"]["failure"] is None
    assert "the moon is full" in shown
    assert "out of memory" not in shown


def test_a_failure_of_docker_itself_is_explained(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(ScriptedRuntime):
        def start(self, narrate: object) -> bool:
            said = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
            raise EngineNotReady(f"docker compose up failed: {said}", hint="read the lines above", detail=said)

    running = EngineState("running", address=stage._running.address)
    play(monkeypatch, lambda *_: Refused([running]))
    code, document, _ = stage.run()
    assert code is ExitCode.NOT_READY
    assert document["data"]["failure"] == "no-gpu-runtime"
    assert "NVIDIA Container Toolkit" in document["error"]["hint"]
