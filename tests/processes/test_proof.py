"""A proof on machines that are not as it needs them, its end at a limit and by Ctrl-C, and its steps for a GPU."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.commands import eventually, wait_until
from tests.support.machines import H100
from tests.support.measured import rows
from tools.proof import __main__ as proof
from tools.proof.decide import Here, Step, steps
from tools.proof.run import ROOT, Session, prove

STEPS = {step.name: step for step in steps()}

TOOL = """#!/bin/sh
case "$1" in
init)
    mkdir -p "$3"
    printf 'DFLASH_PROFILE=cpu\\nDFLASH_PAIR=tiny\\nDFLASH_ENGINE=x\\n' > "$3/.env"
    echo '{"data": {}}';;
up) test -e "${0%/*}/up.json" && cat "${0%/*}/up.json" && exit 5
    test -e "${0%/*}/quick" && exit
    sleep 60 & echo $! > "$3/child"; wait;;
down) touch "$3/went-down";;
*) cat "${0%/*}/$1.json" 2>/dev/null || echo '{"data": {}}';;
esac
"""


def session(place: Path, *commands: str, limit: int = 1) -> Session:
    tool = place / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    step = Step(name="s", proves="p", kind="deployment", limit=limit, commands=[[one] for one in commands])
    ends = time.monotonic() + limit
    return Session(step, Here(), place / "files", 9, ends, tool=(str(tool),))


def test_a_hang_ends_at_its_limit_with_what_it_started_and_the_deployment_is_stopped(tmp_path: Path) -> None:
    hanging = session(tmp_path, "up", "test", limit=8)
    began = time.monotonic()
    outcome = prove(hanging)
    assert time.monotonic() - began < 55
    assert (outcome.state, [command.code for command in outcome.commands]) == ("timed-out", [0, None, 0])
    assert (hanging.deployment / "went-down").exists()
    child = int((hanging.deployment / "child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text(), 60)
    assert prove(session(tmp_path, "test", limit=60)).state == "passed"


def test_a_defect_of_a_step_fails_only_the_step(tmp_path: Path) -> None:
    broken = session(tmp_path, "test", limit=60)
    broken.tool = (str(tmp_path / "missing"),)
    outcome = prove(broken)
    assert outcome.state == "failed"
    assert "FileNotFoundError" in outcome.reason


STARTED = """
import functools, sys
from tools.proof import __main__ as proof
proof.Session = functools.partial(proof.Session, tool=(sys.argv[1],))
sys.exit(proof.main(sys.argv[2:]))
"""


def test_ctrl_c_ends_the_step_with_what_it_started_and_keeps_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = session(tmp_path).tool[0]
    out, shared = tmp_path / "out", tmp_path / "result.json"
    asked = ["--out", str(out), "--only", "tiny,lossless", "--engine", "llamacpp"]
    running = subprocess.Popen([sys.executable, "-c", STARTED, tool, *asked, "--share", str(shared)], cwd=ROOT)
    deployment = out / "tiny/deployment"
    eventually((deployment / "child").exists)
    assert proof.main(asked) == 3
    assert "another proof writes to" in capsys.readouterr().err
    running.send_signal(signal.SIGINT)
    assert running.wait(90) == 130
    listed = json.loads((out / "proof.json").read_text())["data"]["steps"]
    assert [(one["name"], one["state"], one["reason"]) for one in listed] == [("tiny", "skipped", "interrupted")]
    assert (out / "proof.html").read_text().endswith("</html>\n")
    assert json.loads(shared.read_text())["steps"][0]["state"] == "skipped"
    assert (deployment / "went-down").exists()
    child = int((deployment / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


NVIDIA_SMI = """#!/bin/sh
case "$*" in
*compute-apps*) printf '{processes}';;
*) echo '0, {gpu}, {driver}, Disabled';;
esac
"""


@pytest.mark.parametrize(
    ("gpu", "driver", "processes", "reason"),
    [
        ("NVIDIA GeForce GTX 1650, 7.5, 4096, 3900", "580.65.06", "", "3.8 GiB of NVIDIA GeForce GTX 1650 are free"),
        ("NVIDIA H100 80GB HBM3, 9.0, 81559, 81079", "535.104.05", "", "driver 535.104.05 is too old"),
        (
            "NVIDIA H100 80GB HBM3, 9.0, 81559, 900",
            "580.65.06",
            "4321, 70000, /home/bob/train.py\\n",
            "the step needs 4: used by .../train.py (process 4321)",
        ),
    ],
)
def test_a_gpu_that_cannot_run_a_step_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, driver: str, processes: str, reason: str
) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI.format(gpu=gpu, driver=driver, processes=processes))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    out = tmp_path / "out"
    assert proof.main(["--out", str(out), "--only", "tiny", "--engine", "llamacpp"]) == 0
    (step,) = json.loads((out / "proof.json").read_text())["data"]["steps"]
    assert step["state"] == "skipped"
    assert reason in step["reason"]
    assert reason in (out / "proof.html").read_text()


def test_a_full_disk_and_a_wrong_step_are_refused_and_old_results_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "here_now", lambda engine: Here(engine="vllm", installed=False))
    asked = ["--out", str(tmp_path), "--only", "tiny"]
    assert proof.main(asked) == 0
    before = (tmp_path / "proof.json").read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "proof.json")

    with monkeypatch.context() as patched:
        patched.setattr(proof, "write_atomically", full)
        assert proof.main(asked) == 3
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**29))
        assert proof.main(asked) == 3
    assert proof.main([*asked, "--share", str(tmp_path / "missing/x.json")]) == 3
    assert proof.main(["--only", "tinny"]) == 2
    said = capsys.readouterr().err
    for expected in ("No space left", "df -h", "0.5 GiB are free", "missing", "`tinny` is not a step"):
        assert expected in said
    assert json.loads((tmp_path / "proof.json").read_text())["data"]["steps"] == json.loads(before)["data"]["steps"]


def test_a_proof_in_two_parts_keeps_what_the_first_one_showed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = session(tmp_path).tool
    (tmp_path / "quick").touch()
    monkeypatch.setattr(proof, "Session", functools.partial(Session, tool=tool))
    monkeypatch.setattr(proof, "here_now", lambda engine: Here())
    shared = tmp_path / "result.json"
    asked = ["--out", str(tmp_path / "out"), "--share", str(shared), "--resume", "--only"]
    assert proof.main([*asked, "tiny"]) == 0
    first = json.loads(shared.read_text())["steps"]
    (tmp_path / "quick").unlink()  # a step that ran again would hang
    assert proof.main([*asked, "tiny,nvfp4", "--seconds", "60"]) == 0
    assert [step["state"] for step in json.loads(shared.read_text())["steps"]] == ["passed", "skipped"]
    assert json.loads(shared.read_text())["steps"][0] == first[0]
    # the whole proof's time ends within this step, not the step's own: the next run does it again
    monkeypatch.setattr(proof, "GRACE", 0.5)
    assert proof.main([*asked, "lossless", "--seconds", "3"]) == 0
    assert [step["state"] for step in json.loads(shared.read_text())["steps"]] == ["passed", "skipped", "skipped"]
    (tmp_path / "quick").touch()
    assert proof.main([*asked, "lossless"]) == 0
    assert [step["state"] for step in json.loads(shared.read_text())["steps"]] == ["passed", "skipped", "passed"]
    # a failed one runs again only if it is named
    failed = (tmp_path / "out/proof.json").read_text().replace('"state": "passed"', '"state": "failed"')
    (tmp_path / "out/proof.json").write_text(failed)
    assert proof.main([*asked, "lossless"]) == 1
    assert [step["state"] for step in json.loads(shared.read_text())["steps"]] == ["failed", "skipped", "passed"]
    (tmp_path / "out/proof.json").write_text('{"data": []}')
    assert proof.main([*asked, "lossless"]) == 2


# In place of vLLM: a log with figures, and an answer to everything.
ENGINE = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
        print("asked", self.path, file=sys.stderr, flush=True)
print("Model loading took 28.1 GiB memory, GPU KV cache size: 362,116 tokens", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

TORCH = """
class cuda:
    @staticmethod
    def mem_get_info(): return 80, 81
class empty:
    def __init__(self, size, dtype, device): assert (size, device) == (48, "cuda")
    def fill_(self, value): return self
uint8 = None
"""


def on_a_gpu(place: Path, monkeypatch: pytest.MonkeyPatch, step: str, documents: Mapping[str, object]) -> Session:
    """A step on an H100 with programs in place of vLLM, PyTorch and dflash-deploy, which print these documents."""
    for file, text in {"vllm/entrypoints/cli/main.py": ENGINE, "torch.py": TORCH}.items():
        path = place / "packages" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
        (place / "packages" / package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(place / "packages"))
    for name, document in documents.items():
        (place / f"{name}.json").write_text(json.dumps(document))
    made = session(place, limit=60)
    return replace(made, step=STEPS[step], here=Here((H100,), engine="vllm"), port=proof.free_port())


def planned(*names: str) -> dict[str, object]:
    """A document of `plan` for these models."""
    drafting = json.dumps({"method": "dflash", "model": "drafter", "num_speculative_tokens": 15})
    command = ["vllm", "serve", "/models/target", "--served-model-name", "x", "--port", "1", "--max-num-seqs", "4"]
    command += ["--middleware", "m"]
    known = dict(zip(("profile", "pair", "engine"), names, strict=True))
    memory = {"cache_tokens": 362116}
    return {"data": {"command": [*command, "--speculative-config", drafting], "memory": memory, **known}}


@pytest.mark.parametrize("name", ["shape-fp8", "shape-bf16-plain"])
def test_a_shape_is_served_and_measured_beside_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    measured = {"data": {"rows": [row.document() for row in rows()]}}
    plan = planned("h100", STEPS[name].model, "vllm-0.33")
    outcome = prove(on_a_gpu(tmp_path, monkeypatch, name, {"plan": plan, "bench": measured}))
    assert (outcome.state, outcome.reason) == ("passed", "")
    assert outcome.named == {"profile": "h100", "model": STEPS[name].model, "engine": "vllm-0.33"}
    figures = dict(outcome.figures)
    assert (figures["load-gib"], figures["cache-tokens"], figures["planned-cache-tokens"]) == (28.1, 362116, 362116)
    assert len(outcome.rows) == len(rows())
    (served,) = (one.words for one in outcome.commands if one.words[0] == "vllm")
    assert served[-2:] == ("--load-format", "dummy")
    assert any("synthetic" in word for word in served) is STEPS[name].drafts
    (asked,) = (one.words for one in outcome.commands if "--concurrency" in one.words)
    assert asked[asked.index("--concurrency") + 1] == "1,2,4"


def test_an_engine_that_does_not_start_is_explained_by_its_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("h100", "qwen3.5-27b-fp8", "vllm-0.33")
    broken = on_a_gpu(tmp_path, monkeypatch, "shape-fp8-plain", {"plan": plan})
    (tmp_path / "packages/vllm/entrypoints/cli/main.py").write_text("raise RuntimeError('size mismatch')")
    outcome = prove(broken)
    assert outcome.state == "failed"
    assert outcome.reason == "the engine was not ready; log: RuntimeError: size mismatch"


def test_each_level_of_the_sleep_mode_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping = on_a_gpu(tmp_path, monkeypatch, "sleep", {"plan": planned("h100", "tiny", "vllm-0.33")})
    outcome = prove(sleeping)
    assert (outcome.state, outcome.reason) == ("passed", "")
    assert {name for name in outcome.figures if "seconds" in name} == {
        "sleep-1-seconds", "wake-1-seconds", "answer-seconds", "sleep-2-seconds", "wake-2-seconds"
    }  # fmt: skip
    asked = [line.split()[1] for line in sleeping.engine_log.splitlines() if line.startswith("asked")]
    assert asked == ["/sleep?level=1", "/wake_up", "/v1/completions", "/sleep?level=2", "/wake_up"]


@pytest.mark.parametrize(
    ("message", "state"), [("GPU memory is used by another process", "passed"), ("it exited", "failed")]
)
def test_memory_that_another_process_holds_must_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, state: str
) -> None:
    held = on_a_gpu(tmp_path, monkeypatch, "fault-held-memory", {"up": {"error": {"message": message}}})
    outcome = prove(held)
    assert outcome.state == state, outcome.reason
    assert (held.place / "holder.log").read_text() == "held\n"


DOCKER = """#!/bin/sh
case "$*" in *"image inspect"*) printf 'sha256:%064d\\n' 7;; *) exit 1;; esac
"""


def test_a_step_in_a_container_is_identified_by_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    here = Here(engine="vllm", installed=False, docker=True)
    asked = Session(STEPS["tiny"], here, tmp_path / "files", proof.free_port(), time.monotonic() + 60)
    outcome = prove(asked)
    assert (outcome.state, outcome.named["image"][:7]) == ("failed", "sha256:")
    assert outcome.settings["MAX_NUM_SEQS"]
    assert "Docker" in outcome.reason
