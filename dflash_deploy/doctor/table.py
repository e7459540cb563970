"""All checks in the order in which they are shown, and the loop that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from dflash_deploy.doctor import container, deployment, machine, network
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.errors import DeployError
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Redactor

OF_THE_MACHINE: tuple[tuple[str, Callable[[DoctorContext], Iterator[Check]]], ...] = (
    ("gpu", machine.gpu),
    ("condition", machine.condition),
    (".env", deployment.env_file),
    ("leftovers", deployment.leftovers),
)

OF_THE_PLAN: tuple[tuple[str, Callable[[DoctorContext, Plan], Iterator[Check]]], ...] = (
    ("plan", deployment.findings),
    ("driver", machine.driver),
    ("architecture", machine.architecture),
    ("container engine", container.runs_it),
    ("gpu in containers", container.gpus_in_containers),
    ("base image", container.base_image),
    ("memory", machine.memory),
    ("unified memory", machine.unified_memory),
    ("limits", machine.limits),
    ("disk", deployment.disk),
    ("weights", deployment.weights),
    ("port", network.port),
    ("link", network.link),
    ("domain", network.domain),
    ("hub", network.hub),
)


def run_checks(subject: DoctorContext) -> tuple[Check, ...]:
    """Run all checks. A check that crashes is reported and the others still run; secrets are redacted."""
    # the token may come from the environment, which the deployment's own redaction does not know
    redact = Redactor([subject.token])
    return tuple(replace(check, saw=redact(check.saw), fix=redact(check.fix)) for check in _all(subject))


def _all(subject: DoctorContext) -> Iterator[Check]:
    plan, refusal = subject.plan, subject.refusal
    for name, look in OF_THE_MACHINE:
        yield from _timed(name, partial(look, subject))
    if refusal is not None:
        yield Check("plan", "no", refusal.message, refusal.hint)
    if plan is not None:
        for name, judge in OF_THE_PLAN:
            yield from _timed(name, partial(judge, subject, plan))


def _timed(name: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    started = time.monotonic()
    try:
        for check in look():
            now = time.monotonic()
            yield replace(check, seconds=round(now - started, 3))
            started = now
    except DeployError as problem:
        # such as a `.env` that cannot be read
        yield Check(name, "no", problem.message, problem.hint, round(time.monotonic() - started, 3))
    except Exception as problem:
        saw = f"this check itself failed: {type(problem).__name__}: {problem}"
        seconds = round(time.monotonic() - started, 3)
        yield Check(name, "warning", saw, "please report this; the results of the other checks are valid", seconds)
