"""Runs the steps of a proof, each within its limit: commands, their output in files, and the engine's end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.host.ask import image_id
from dflash_deploy.intake.files import read_text
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.engines.installed import CPU_SITE
from tools.proof import decide, shapes
from tools.proof.decide import Command, Here, Outcome, Step
from tools.proof.share import StepState, public_settings

ROOT = Path(__file__).resolve().parents[2]

GRACE = 30.0  # seconds for `down` after a step that its limit ended, and for a process after SIGTERM
INTERRUPTED = "interrupted"  # the reason of the step that Ctrl-C ended
NAMED = {"profile": "PROFILE", "model": "PAIR", "engine": "ENGINE"}

LOGS = 64 * 2**20


@dataclass
class Session:
    """One step: the directory of its files, the commands that ran, and when it ends (monotonic clock)."""

    step: Step
    here: Here
    place: Path
    port: int
    ends: float
    tool: tuple[str, ...] = (sys.executable, "-m", "dflash_deploy")
    commands: list[Command] = field(default_factory=list)

    @property
    def deployment(self) -> Path:
        """The directory of the deployment."""
        return self.place / "deployment"

    @property
    def left(self) -> float:
        """Seconds until the step's limit."""
        return max(self.ends - time.monotonic(), 0.1)

    def dflash(self, *words: str, limit: float | None = None) -> tuple[int | None, dict[str, Any], str]:
        """Run a command on the deployment: its exit code, its JSON document, and all it said."""
        asked = (*self.tool, words[0], "--dir", str(self.deployment), *words[1:], "--json")
        return self.run(asked, limit=limit)

    def run(
        self, words: Sequence[str], *, limit: float | None = None, env: Mapping[str, str] = {}
    ) -> tuple[int | None, dict[str, Any], str]:
        """Run a program to its end or the limit. Output goes to files: what it leaves running may keep a pipe open."""
        begun, name = time.monotonic(), self.place / f"{len(self.commands):02}"
        with name.with_suffix(".out").open("wb") as out, name.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                words, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _path(ROOT), **env},
            )  # fmt: skip
            try:
                code: int | None = process.wait(self.left if limit is None else limit)
            except subprocess.TimeoutExpired:
                end(process)
                code = None
            except BaseException:  # Ctrl-C: the program has a session of its own, and does not get it
                end(process)
                raise
        said = [read_text(name.with_suffix(end_), limit=LOGS, lossy=True) for end_ in (".out", ".err")]
        digest = hashlib.sha256("".join(said).encode()).hexdigest()
        self.commands.append(Command(tuple(words), code, round(time.monotonic() - begun, 1), digest))
        try:
            document = parse_object(said[0])
        except Invalid:
            document = {}
        return code, document, "".join(said)

    @property
    def engine_log(self) -> str:
        """The log of the engine, of a deployment or of a process of this step."""
        for file in (self.deployment / ".dflash/engine.log", self.place / "engine.log"):
            if file.exists():
                return read_text(file, limit=LOGS, lossy=True)
        return ""


def _path(*paths: Path) -> str:
    """PYTHONPATH with these before what it has: an engine may be there."""
    return os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all of its group: first ask, then kill."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, sign)
            process.wait(GRACE)
        if process.poll() is not None:
            return


def prove(session: Session) -> Outcome:
    """Run one step, or rehearse it. It never raises for what fails: the next steps follow. Ctrl-C ends the step."""
    step, begun = session.step, time.monotonic()
    reason, rehearse = decide.obstacle(step, session.here), step.cuda and not session.here.gpus
    try:
        session.place.mkdir(parents=True, exist_ok=True)
        if rehearse:
            outcome = _rehearsed(session, session.here.problem or "no GPU")
        elif reason:
            outcome = Outcome(step, "skipped", reason=reason)
        else:
            outcome = KINDS[step.kind](session)
    except KeyboardInterrupt:
        outcome = Outcome(step, "skipped", reason=INTERRUPTED)
    except Exception as problem:  # a defect of one step must not cost the others
        outcome = Outcome(step, "failed", reason=f"{type(problem).__name__}: {problem}"[:300])
    if (session.deployment / ".env").exists() and session.dflash("down", limit=GRACE)[0] != 0:
        outcome = replace(outcome, reason=f"{outcome.reason}; `down` failed: its engine may still run".lstrip("; "))
    log = hashlib.sha256(session.engine_log.encode()).hexdigest() if session.engine_log else ""
    seconds = round(time.monotonic() - begun, 1)
    return replace(outcome, seconds=seconds, commands=tuple(session.commands), log=log)


def _init(session: Session, profile: str = "", model: str = "") -> str:
    """Make the deployment with the step's settings; what was wrong, empty if nothing."""
    shutil.rmtree(session.deployment, ignore_errors=True)
    profile = profile or ("" if session.here.gpus else "cpu")
    words = [*(("--profile", profile) if profile else ()), "--engine", session.here.engine]
    if model or session.here.engine == "vllm":
        words += ["--model", model or "tiny"]
    words += ["--runtime", "native" if session.here.installed else "compose", "--port", str(session.port), "--yes"]
    code, document, _ = session.dflash("init", *words)
    if code:
        return f"init: exit code {code}: {(document.get('error') or {}).get('message', '')}"
    changed = dict(session.step.settings) | ({"EXTRA_ARGS": f"'{session.here.extra}'"} if session.here.extra else {})
    if session.step.fault == "drafter":
        wrong = _wrong_drafter(session.place / "wrong-drafter")
        changed |= {"DFLASH_DRAFTER": str(wrong), "DRAFTER_HOST_PATH": str(wrong)}
    env = session.deployment / ".env"
    lines = [line for line in read_text(env).splitlines() if line.partition("=")[0] not in changed]
    env.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in changed.items())]) + "\n")
    return ""


def _deployment(session: Session) -> Outcome:
    step, said, codes, rows = session.step, "", list[int | None](), list[Mapping[str, Any]]()
    document: dict[str, Any] = {}
    if problem := _init(session):
        return Outcome(step, "failed", reason=problem)
    with _memory_held(session) if step.fault == "held" else nullcontext():
        for words in step.commands:
            if words[0] == "status" and step.fault == "killed":
                _kill_engine(session)
            code, document, said = session.dflash(*words)
            codes.append(code)
            rows += (document.get("data") or {}).get("rows") or []
            if code != 0:
                break
    state, reason = decide.judged(step, codes, said)
    if state == "failed" and (message := (document.get("error") or {}).get("message")):
        reason = f"{reason}: {message}"
    figures, values = decide.figures_in_log(session.engine_log), Deployment.existing(session.deployment).values
    named = {name: values[f"DFLASH_{key}"] for name, key in NAMED.items()}
    if not session.here.installed:
        named["image"] = image_id(plan_of(Deployment.existing(session.deployment)).settings.dflash_image)
    settings = public_settings(values)
    return Outcome(step, state, reason=reason, figures=figures, rows=rows, named=named, settings=settings)


def _kill_engine(session: Session) -> None:
    """End the engine as the kernel does if memory runs out: the process of the deployment with most memory.

    Returns when the others have noticed and ended, which takes an API server seconds.
    """
    supervisor = parse_object(read_text(session.deployment / ".dflash/run.json"))["pid"]
    held = {pid: _resident(pid) for pid in _session_of(supervisor) if pid != supervisor}
    os.kill(max(held, key=lambda pid: held[pid]), signal.SIGKILL)
    while session.left > GRACE and set(_session_of(supervisor)) - {supervisor}:
        time.sleep(0.5)


def _session_of(leader: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                yield int(entry.name)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0


_HOLD = """
import time, torch
memory = torch.cuda.mem_get_info()[1]
held = torch.empty(int(memory * 0.6), dtype=torch.uint8, device="cuda").fill_(1)
print("held", flush=True)
time.sleep(3600)
"""


@contextmanager
def _memory_held(session: Session) -> Iterator[None]:
    """Another process has 60 % of the GPU's memory while the block runs."""
    log = session.place / "holder.log"
    with log.open("wb") as out:
        holder = subprocess.Popen((sys.executable, "-c", _HOLD), stdout=out, stderr=out, start_new_session=True)
    try:
        while "held" not in (said := read_text(log, limit=LOGS, lossy=True)).split():
            if holder.poll() is not None or session.left < 1:
                raise RuntimeError(f"no memory was held: {(said.strip().splitlines() or ['no output'])[-1]}")
            time.sleep(0.5)
        yield
    finally:
        end(holder)


def _wrong_drafter(place: Path) -> Path:
    shutil.copytree(ROOT / "models/tiny/drafter", place, dirs_exist_ok=True)
    config = parse_object(read_text(place / "config.json"))
    config["hidden_size"] *= 2
    (place / "config.json").write_text(json.dumps(config))
    return place


def _rehearsed(session: Session, reason: str) -> Outcome:
    """Make the step's command for an H100, and check each option against what the release's own parser knows.

    A shape is also measured with the tiny models if vLLM is installed: all but the size, the kernels and the speed.
    """
    step, here = session.step, session.here
    session.here = replace(session.here, engine=step.engines[0], installed=True)
    if problem := _init(session, profile="h100", model=session.step.model):
        return Outcome(step, "failed", reason=problem)
    code, document, _ = session.dflash("plan")
    data = document.get("data") or {}
    if code or "command" not in data:
        return Outcome(step, "failed", reason=f"plan: exit code {code}")
    words = tuple(data["command"])
    if step.kind == "shape":
        target, drafter = shapes.write(session.place / "shapes", step.model)
        words = ("vllm", *decide.shape_command(words, target, drafter, drafts=step.drafts, port=session.port))
    elif step.kind == "sleep":
        words = (*words, "--enable-sleep-mode")
    session.commands.append(Command(words, 0, 0.0, ""))
    unknown = decide.unknown_options(words, load_catalog().options[data["engine"]])
    if unknown:
        return Outcome(step, "failed", reason=f"{data['engine']} has no option {', '.join(unknown)}")
    shown = "arguments checked"
    if step.kind == "shape" and not step.settings and here.installed and here.engine in step.engines:
        session.here = here
        small = _shape(session)
        if small.state != "passed":
            return small
        shown += ", measured with the tiny models"
    return Outcome(step, "rehearsed", reason=f"{reason}: {shown}; kernels, memory and speed were not")


def _shape(session: Session) -> Outcome:
    """Serve 27B's shape; without a GPU the tiny models' shape, which rehearses the rest."""
    step, real = session.step, bool(session.here.gpus)
    model = step.model if real else "tiny"
    if problem := _init(session, model=model):
        return Outcome(step, "failed", reason=problem)
    _, document, _ = session.dflash("plan")
    target, drafter = shapes.write(session.place / "shapes", model)
    words = decide.shape_command(
        document["data"]["command"], target, drafter, drafts=step.drafts, port=session.port, dummy=real
    )
    (session.deployment / ".env").unlink()
    with _serving(session, words, _environment(session)) as ready:
        if not ready:
            return _not_ready(session)
        url, levels = f"http://127.0.0.1:{session.port}", decide.concurrencies(words) if real else "1,2"
        asked = (*session.tool, "bench", "--url", url, "--workload", "code", "--concurrency", levels, "--json")
        code, measured, _ = session.run(asked)
    figures = decide.beside_plan(decide.figures_in_log(session.engine_log), document["data"])
    rows = (measured.get("data") or {}).get("rows") or []
    state, reason = decide.judged(step, [code], "")
    if state == "failed":
        reason = f"{reason}: {(measured.get('error') or {}).get('message', '')}; log: {_first_error(session)}"
    named = {
        name: document["data"][key] for name, key in (("profile", "profile"), ("model", "pair"), ("engine", "engine"))
    }
    return Outcome(step, state, reason=reason, figures=figures, rows=rows, named=named)


def _environment(session: Session, *paths: Path) -> dict[str, str]:
    """Where vLLM finds these folders, and its CPU build the patches of the package."""
    whole = (*(() if session.here.gpus else (CPU_SITE,)), ROOT, *paths)
    return {"PYTHONPATH": _path(*whole), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _sleep(session: Session) -> Outcome:
    """Each level of the sleep mode: seconds to sleep, to wake, and to the first answer after it."""
    if problem := _init(session):
        return Outcome(session.step, "failed", reason=problem)
    _, document, _ = session.dflash("plan")
    words = (*decide.without_gateway(document["data"]["command"], session.port), "--enable-sleep-mode")
    figures = {}
    (session.deployment / ".env").unlink()
    with _serving(session, words, _environment(session) | {"VLLM_SERVER_DEV_MODE": "1"}) as ready:
        if not ready:
            return _not_ready(session)
        for level in (1, 2):
            figures[f"sleep-{level}-seconds"] = _posted(session, f"/sleep?level={level}")
            figures[f"wake-{level}-seconds"] = _posted(session, "/wake_up")
            if level == 1:  # level 2 drops the weights: an answer needs them loaded again
                body = {"model": words[words.index("--served-model-name") + 1], "prompt": "1 2 3", "max_tokens": 8}
                figures["answer-seconds"] = _posted(session, "/v1/completions", body)
    return Outcome(session.step, "passed", figures={**figures, **decide.figures_in_log(session.engine_log)})


def _posted(session: Session, path: str, body: Mapping[str, object] | None = None) -> float:
    begun = time.monotonic()
    request = urllib.request.Request(
        f"http://127.0.0.1:{session.port}{path}",
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=min(60.0, session.left)).read()
    return round(time.monotonic() - begun, 2)


@contextmanager
def _serving(session: Session, words: Sequence[str], env: Mapping[str, str] = {}) -> Iterator[bool]:
    """The engine with these arguments, as long as the block runs; whether it became ready within the step's limit."""
    log = session.place / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            (sys.executable, "-m", "vllm.entrypoints.cli.main", *words), stdout=out, stderr=out, cwd=session.place,
            stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **env},
        )  # fmt: skip
    begun = time.monotonic()
    try:
        yield _ready(session, process)
    finally:
        end(process)
        digest = hashlib.sha256(log.read_bytes()).hexdigest()
        seconds = round(time.monotonic() - begun, 1)
        session.commands.append(Command(("vllm", *words), process.returncode, seconds, digest))


def _ready(session: Session, process: subprocess.Popen[bytes]) -> bool:
    while process.poll() is None and session.left > 1:
        time.sleep(1)
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{session.port}/health", timeout=2)
            return True
    return False


def _not_ready(session: Session) -> Outcome:
    state: StepState = "timed-out" if session.left <= 1 else "failed"
    return Outcome(session.step, state, reason=f"the engine was not ready; log: {_first_error(session)}")


def _first_error(session: Session) -> str:
    """The first error in the engine's log: those behind it often only follow from it."""
    lines = (line for line in session.engine_log.splitlines() if " WARNING " not in line)
    return next((line[:300] for line in lines if re.search(r"\b[A-Z]\w*(?:Error|Exception): ", line)), "no error")


# Tokens of questions that the tiny target has learned: on others a quantized model is further from its reference.
_TOKENS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
asked = [one for one in map(json.loads, open(sys.argv[2])) if one.get("kind") == "chat"][:8]
made = [tokenizer.apply_chat_template(one["messages"], add_generation_prompt=True, return_dict=False) for one in asked]
json.dump(made, open(sys.argv[3], "w"))
"""


def _loader(session: Session) -> Outcome:
    """Log-probabilities of an NVFP4_AWQ checkpoint in the engine and in its float64 reference: their distance."""
    step, place = session.step, session.place.resolve()
    env = _environment(session, ROOT / "images/vllm")
    checkpoint, tokens = str(place / "checkpoint"), str(place / "tokens.json")
    engine, reference = str(place / "engine.json"), str(place / "reference.json")
    for words, more in (
        (("-m", "tests.support.nvfp4", checkpoint), {}),
        (("-c", _TOKENS, checkpoint, str(ROOT / "models/tiny/prompts.jsonl"), tokens), {}),
        (("-m", "tests.support.nvfp4_engine", "logits", checkpoint, tokens, engine), {}),
        (("-m", "tests.support.nvfp4_reference", checkpoint, tokens, reference), {"CUDA_VISIBLE_DEVICES": ""}),
    ):
        code, _, said = session.run((sys.executable, *words), env={**env, **more})
        if code != 0:
            last = (said.strip().splitlines() or [""])[-1][:300]
            return Outcome(step, "timed-out" if code is None else "failed", reason=f"{words[1][:30]}: {last}")
    figures = decide.distance(*(json.loads(Path(file).read_text(encoding="utf-8")) for file in (engine, reference)))
    if figures["relative-error"] < decide.LOADER_ERROR and figures["worst-position"] < decide.LOADER_WORST:
        return Outcome(step, "passed", figures=figures)
    return Outcome(step, "failed", reason="the engine computes something else than the reference", figures=figures)


def _doctor(session: Session) -> Outcome:
    # doctor's exit code reports problems of the machine; the step is whether it can say so
    code, document, _ = session.run((*session.tool, "doctor", "--json"))
    if not (document.get("data") or document.get("error")):
        return Outcome(session.step, "timed-out" if code is None else "failed", reason=f"exit code {code}")
    return Outcome(session.step, "passed", reason=f"exit code {code}" if code else "")


KINDS: Mapping[str, Callable[[Session], Outcome]] = {
    "deployment": _deployment,
    "shape": _shape,
    "loader": _loader,
    "sleep": _sleep,
    "doctor": _doctor,
}
