"""`plan --ask-engine` and `up`: the engine makes its configuration from config.json, before weights are downloaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE, PRIVATE, write_atomically
from dflash_deploy.errors import EngineMissing, FileMissing, FileRefused, WeightsMissing
from dflash_deploy.host.ask import image_id
from dflash_deploy.intake.documents import EngineAnswer, parse_document
from dflash_deploy.intake.files import read_bytes
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.plan import ACCEPTED, DEFAULTS, REFUSED, SILENCE, UNASKABLE, Asked, chosen
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.command import CONTAINER_DRAFTER, CONTAINER_TARGET, drafter_directory, engine_environment
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import with_configs
from dflash_deploy.redact import Redact, Redactor, Secret, redact_by_shape
from dflash_deploy.serve.answer import MARK
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.ahead import lay_out
from dflash_deploy.weights.checkpoints import metadata_in
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lock import Role, read_lock
from dflash_deploy.weights.pull import network_is_refused, requested_models

LIMIT = 60.0  # seconds for one answer. vLLM 0.32 on two cores takes 12 to 20, most of them for its imports.

# Bytes of output that are kept, the last ones. An answer is shorter, and is the last that an engine writes.
MOST_OUTPUT = 1 << 20

MOST_LINES, LONGEST_LINE = 200, 1 << 16  # the same of a container: lines, and characters of each
BEAT = 0.2  # seconds between two checks of whether the process has ended
QUESTION = "dflash_deploy.serve.ask"  # the module that asks, on this machine and in an image


@dataclass(frozen=True)
class Heard:
    """How the process ended, and the end of its output. `status` is `None` if its time was over."""

    status: int | None
    output: str

    @property
    def answer(self) -> EngineAnswer | None:
        """The last answer in the output; `None` if it has none that can be read."""
        lines = [line for line in self.output.splitlines() if line.startswith(MARK)]
        if self.status != 0 or not lines:
            return None
        try:
            return parse_document(lines[-1].removeprefix(MARK), EngineAnswer)
        except Invalid:
            return None


def ask(plan: Plan, target: Path, drafter: Path, *, seconds: float = LIMIT) -> Heard:
    """Ask the engine of a plan. `target` and `drafter` are directories with config.json and tokenizer.

    Raises EngineMissing if the engine is not on this machine: its image, or its installation.
    """
    if plan.runtime == "compose":
        return _ask_container(plan, target, drafter, seconds)
    kind = plan.engine.kind
    if kind.installed(plan.settings) is None:
        how = kind.how_to_install(plan.engine.native or kind.name)
        raise EngineMissing(f"{kind.title} is not installed in the environment of {sys.executable}", hint=how)
    return run_question([sys.executable, "-m", QUESTION], _environment(plan, target, drafter), seconds=seconds)


def _environment(plan: Plan, target: Path, drafter: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in all_setting_names()}
    places = {Settings.model_path.name: str(target), Settings.drafter_path.name: str(drafter)}
    # Python must not import modules from the working directory
    return inherited | engine_environment(plan) | places | {"PYTHONSAFEPATH": "1"}


def run_question(command: list[str], environment: Mapping[str, str], *, seconds: float) -> Heard:
    """Run a command to its end or to the end of its time, then end all processes of its session."""
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # the terminal's Ctrl-C does not reach it, and its process group can be killed with it
        start_new_session=True,
    ) as process:
        try:
            output = _read(process, deadline)
        finally:
            # also what it started, which may live on after it and hold the pipe
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            in_time = time.monotonic() < deadline
            process.wait()
    return Heard(process.returncode if in_time else None, output.decode("utf-8", "replace"))


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """The last bytes that a process writes, until it ends or the time is over."""
    assert process.stdout is not None  # noqa: S101 - because of stdout=PIPE
    kept, descriptor = bytearray(), process.stdout.fileno()
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            # a child that lives on may hold the pipe open, so the end of the process is the end
            ended = process.poll() is not None
            while ready.select(0.0 if ended else BEAT) and time.monotonic() < deadline:
                block = os.read(descriptor, 1 << 16)
                if not block:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
                    return bytes(kept)
                kept += block
                del kept[:-MOST_OUTPUT]
            if ended:
                break
    return bytes(kept)


def _ask_container(plan: Plan, target: Path, drafter: Path, seconds: float) -> Heard:
    """Ask in a container of the plan's image, which sees the GPUs and these two directories, and no weights."""
    from dflash_deploy.runtime.docker import ContainerJob, run_job  # noqa: PLC0415 - Docker's client: 0.2 s

    job = ContainerJob(
        image=plan.settings.dflash_image,
        command=("-m", QUESTION),
        entry_point="python3",
        mounts={CONTAINER_TARGET: (target, False), CONTAINER_DRAFTER: (drafter, False)},
        environment=engine_environment(plan),
        gpus=not plan.engine.cpu,
        seconds=seconds,
    )
    lines: deque[str] = deque(maxlen=MOST_LINES)
    done = run_job(job, lambda line: lines.append(line[-LONGEST_LINE:]), fetch=False)
    return Heard(done.status if done.in_time else None, "\n".join(lines))


DETAIL_LINES = 20  # last lines of an engine that gave no answer

# The file in `.dflash/` with the digest of the last question that the engine answered without an objection.
NAME = "asked"


def ask_engine(
    directory: Path, choice: Choice = DEFAULTS, *, seconds: float = LIMIT, reporter: Reporter = SILENT
) -> Asked:
    """Ask the engine of a plan to make its configuration: no weights are loaded or downloaded, and nothing is kept.

    The plan is that of `operations.plan`. Missing config.json and tokenizer are fetched. Raises EngineMissing if the
    engine or its image is not on this machine, WeightsMissing if a config.json is missing or damaged, DownloadFailed,
    and what `plan` raises.
    """
    made = chosen(directory, choice)
    deployment = Deployment(directory)
    with tempfile.TemporaryDirectory(prefix="dflash-ask-") as work:
        target, drafter = Path(work) / "target", Path(work) / "drafter"
        made = _with_configs(deployment, made, target, drafter)
        reporter.note(f"asking {made.engine_title} for its configuration; no weights are loaded")
        started = time.monotonic()
        heard = ask(made, target, drafter, seconds=seconds)
    redact = Redactor(deployment.known_secrets if deployment.exists() else ())
    took = round(time.monotonic() - started, 1)
    return _asked(made, heard, took, seconds, lambda text: redact_by_shape(redact(text)))


def ask_before_download(deployment: Deployment, plan: Plan, reporter: Reporter) -> None:
    """Ask the engine of a plan whose weights are missing. Raises PreflightRefused if it, or a rule, refuses.

    An engine that cannot be asked, or that gives no answer, is reported and no obstacle. The same holds for a damaged
    config.json: the download replaces it. A question that was answered without an objection is not asked again.
    Raises what `ask_engine` raises, without EngineMissing and WeightsMissing.
    """
    if plan.settings.several_machines or network_is_refused():
        return
    digest = _digest(deployment, plan)
    if _remembered(deployment) == digest:
        return
    try:
        asked = ask_engine(deployment.directory, reporter=reporter)
    except (EngineMissing, WeightsMissing) as problem:
        reporter.note(f"the engine is not asked before the download: {problem.message}")
        return
    if asked.verdict in {UNASKABLE, SILENCE} and not asked.plan.errors:
        reporter.note(f"the download begins without the engine's answer: {asked.plan.engine_title} {asked.said}")
    elif asked.failure is not None:
        raise asked.failure
    else:
        _remember(deployment, digest)


def _digest(deployment: Deployment, plan: Plan) -> bytes:
    """What an answer depends on: this program, the engine and its image, settings, models and their locked commits.

    A commit that is not in dflash.lock is not part of it: the Hub knows it only after a request.
    """
    models = [str(one) for one in requested_models(deployment, plan)]
    lock = read_lock(deployment.directory / LOCK_FILE)
    commits = sorted((role, model.commit) for role, model in lock.models.items()) if lock is not None else []
    image = image_id(plan.settings.dflash_image) if plan.runtime == "compose" else ""
    engine = [plan.engine.name, plan.engine_version, plan.runtime, image]
    question = [__version__, engine, sorted(engine_environment(plan).items()), models, commits]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest().encode()


def _remembered(deployment: Deployment) -> bytes:
    """The digest of the last question without an objection; empty if there is none that can be read."""
    try:
        return read_bytes(deployment.state / NAME, limit=100).strip()
    except (FileMissing, FileRefused):
        return b""


def _remember(deployment: Deployment, digest: bytes) -> None:
    # the next `up` only asks again
    with contextlib.suppress(OSError):
        deployment.make_state()
        write_atomically(deployment.state / NAME, f"{digest.decode()}\n", mode=PRIVATE)


def _with_configs(deployment: Deployment, plan: Plan, target: Path, drafter: Path) -> Plan:
    """The plan with the metadata of both models, which are in these directories afterwards."""
    settings = plan.settings
    if settings.model_file:
        # a GGUF has no config.json, and its engine reads arguments only
        target.mkdir()
        drafter.mkdir()
        return plan
    exists = deployment.exists()
    token = deployment.secrets[Settings.hf_token.name] if exists else Secret("")
    source = Source.of(token, deployment.values.get("HF_ENDPOINT") if exists else None)
    lock = read_lock(deployment.directory / LOCK_FILE) if exists else None
    wanted = {one.role: one for one in requested_models(deployment, plan)}
    roles: dict[Role, tuple[str, Path]] = {"target": (settings.model_host_path, target)}
    if plan.drafting:
        roles["drafter"] = (drafter_directory(settings), drafter)
    else:
        drafter.mkdir()
    for role, (written, place) in roles.items():
        lay_out(deployment.path(written), place, role, wanted.get(role), source, lock)
    return with_configs(plan, metadata_in(target), metadata_in(drafter))


def _asked(plan: Plan, heard: Heard, took: float, limit: float, redact: Redact) -> Asked:
    answer = heard.answer
    if answer is None:
        lines = [line for line in map(str.strip, redact(heard.output).splitlines()) if line]
        return Asked(plan, SILENCE, _end(heard, limit), {}, took, "\n".join(lines[-DETAIL_LINES:]))
    if answer.unaskable:
        return Asked(plan, UNASKABLE, redact(answer.unaskable), {}, took)
    if answer.refused:
        return Asked(plan, REFUSED, redact(answer.refused), {}, took)
    return Asked(plan, ACCEPTED, "", {name: redact(value) for name, value in answer.decided.items()}, took)


def _end(heard: Heard, limit: float) -> str:
    """How a process without an answer ended."""
    if heard.status is None:
        return f"did not make its configuration within {limit:.0f} s"
    if heard.status < 0:
        return f"was ended by signal {-heard.status} while it made its configuration"
    if heard.status:
        return f"ended with code {heard.status} while it made its configuration"
    return "ended without an answer that can be read"
