"""`plan --ask-engine` and `up`: the engine makes its configuration from config.json, before weights are downloaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE, PRIVATE, write_atomically
from dflash_deploy.diagnosis.diagnose import LogReader
from dflash_deploy.errors import EngineMissing, FileMissing, FileRefused, PreflightRefused, WeightsMissing
from dflash_deploy.host.ask import image_id
from dflash_deploy.intake.files import read_bytes
from dflash_deploy.operations.plan import DEFAULTS, chosen
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.command import drafter_directory, engine_environment
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import with_configs
from dflash_deploy.redact import Redact, Redactor, Secret, redact_by_shape
from dflash_deploy.runtime.asking import LIMIT, Heard, ask
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.ahead import lay_out
from dflash_deploy.weights.checkpoints import metadata_in
from dflash_deploy.weights.lock import Role, read_lock
from dflash_deploy.weights.pull import network_is_refused, requested_models
from dflash_deploy.weights.source import Source

DETAIL_LINES = 20
"""Last lines of an engine that gave no answer."""

NAME = "asked"
"""The file in `.dflash/` with the digest of the last question that the engine answered without an objection."""

ACCEPTED, REFUSED, UNASKABLE, SILENCE = "accepts", "refuses", "cannot be asked", "did not answer"


@dataclass(frozen=True)
class Asked:
    """What the engine says about a plan. `plan` is checked against the config.json that the engine read.

    `verdict` is ACCEPTED, REFUSED, UNASKABLE or SILENCE; `said` are the engine's words, or what is known of its end.
    `decided` is what the engine chose, by name.
    """

    plan: Plan
    verdict: str
    said: str
    decided: Mapping[str, str]
    seconds: float
    detail: str = ""

    def document(self) -> dict[str, object]:
        """The `asked` of `plan --json`."""
        return {
            "engine": self.plan.engine_title,
            "verdict": self.verdict,
            "said": self.said,
            "decided": dict(self.decided),
            "seconds": round(self.seconds, 1),
        }

    @cached_property
    def failure(self) -> PreflightRefused | None:
        """Why the engine would not start, as an error; `None` if it accepts the plan or cannot be asked."""
        title, rule = self.plan.engine_title, next(iter(self.plan.errors), None)
        if self.verdict == REFUSED:
            hint = rule.fix if rule is not None else self._known_fix()
            return PreflightRefused(f"{title} refuses this: {self.said}", hint=hint)
        if rule is not None:
            return PreflightRefused(rule.message, hint=rule.fix)
        if self.verdict == SILENCE:
            hint = f"run `dflash-deploy plan` without asking; `dflash-deploy up` shows how {title} starts"
            return PreflightRefused(f"{title} {self.said}", hint=hint, detail=self.detail)
        return None

    def _known_fix(self) -> str:
        plan = self.plan
        reader = LogReader(load_catalog().failures, plan.engine.engine, plan.engine_version)
        known = reader.read([f"ValueError: {self.said}"]).diagnosis
        return known.do if known else "change the setting that the engine names, in .env or with an option of `plan`"


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
    return _asked(made, heard, time.monotonic() - started, seconds, lambda text: redact_by_shape(redact(text)))


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
