"""Logs of other people: no failure is given a wrong cause or hidden, no healthy log is called ill."""

import pytest

from tests.support.rows import each_of
from tools.diagnosis.score import BLIND_SETS, HALVES, Case, alarm, cases, scored


def name_of(case: Case) -> str:
    return case.name


@each_of(cases("healthy"), name=name_of)
def test_no_healthy_log_is_called_ill(case: Case) -> None:
    assert alarm(case) == ""


@pytest.mark.parametrize("half", HALVES)
def test_no_failure_of_others_is_named_wrongly_and_none_is_hidden(half: str) -> None:
    results = {case.name: scored(case) for case in cases(half)}
    assert [name for name, (how, _) in results.items() if how in {"wrong", "line not shown"}] == []


@pytest.mark.parametrize("half", HALVES)
def test_six_of_ten_failures_of_others_are_named(half: str) -> None:
    named_right = [case for case in cases(half) if scored(case)[0] == "named"]
    assert len(named_right) >= 0.6 * len(cases(half))


# logs collected without knowing the catalog

BLIND = [case for name in BLIND_SETS for case in cases(name)]


@each_of((case for case in BLIND if not case.decisive), name=name_of)
def test_no_healthy_log_of_the_blind_set_is_called_ill(case: Case) -> None:
    assert alarm(case) == ""


@each_of((case for case in BLIND if case.decisive), name=name_of)
def test_no_failure_of_the_blind_set_is_named_wrongly_and_none_is_hidden(case: Case) -> None:
    assert scored(case)[0] in {"named", "part named", "line shown"}
