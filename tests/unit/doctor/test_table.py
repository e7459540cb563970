"""The loop through all checks."""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from dflash_deploy.doctor import table
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.doctor.table import run_checks
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Secret
from tests.support.examined import a_subject

TOKEN = Secret("hf_thisIsASecretThatNobodyShouldSee")


class Clock:
    """The time that has passed."""

    seconds = 0.0


def fine(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    yield Check("first", "ok", "all is well")
    Clock.seconds += 2
    yield Check("second", "ok", "as well")


def crashes(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    yield Check("before", "ok", "so far")
    raise RuntimeError(f"with {TOKEN.reveal()}")


def crashes_at_once(subject: DoctorContext, plan: Plan) -> NoReturn:
    raise KeyError("DFLASH_PORT")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "OF_THE_MACHINE", ())
    monkeypatch.setattr(table, "OF_THE_PLAN", (("a", crashes), ("b", crashes_at_once), ("c", fine)))


@pytest.mark.usefixtures("rows")
def test_a_check_that_crashes_does_not_end_the_others() -> None:
    checks = run_checks(a_subject(token=TOKEN))
    assert [(check.name, check.status) for check in checks] == [
        ("before", "ok"),
        ("a", "warning"),
        ("b", "warning"),
        ("first", "ok"),
        ("second", "ok"),
    ]
    assert "RuntimeError" in checks[1].saw
    assert "KeyError: 'DFLASH_PORT'" in checks[2].saw


@pytest.mark.usefixtures("rows")
def test_what_they_say_is_redacted() -> None:
    assert TOKEN.reveal() not in str(run_checks(a_subject(token=TOKEN)))


@pytest.mark.usefixtures("rows")
def test_each_knows_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_deploy.doctor.table.time.monotonic", lambda: Clock.seconds)
    first, second = run_checks(a_subject())[-2:]
    assert (first.seconds, second.seconds) == (0, 2)


def test_without_a_plan_the_machine_is_examined_and_the_refusal_told() -> None:
    facts = a_subject().facts
    checks = run_checks(DoctorContext(facts, refusal=UnknownProfile("no profile fits this machine", hint="name one")))
    assert [(check.name, check.status) for check in checks] == [("gpu", "ok"), ("plan", "no")]
    assert (checks[1].saw, checks[1].fix) == ("no profile fits this machine", "name one")
