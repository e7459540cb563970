"""docs/reference/faults.md says what the tests show, and they show enough."""

from pathlib import Path

from tools.reference.faults import page, shown

ENOUGH = 25


def test_the_page_is_up_to_date() -> None:
    written = (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text()
    assert written == page(shown()), "run: make generate"


def test_there_are_enough_faults_each_of_its_own() -> None:
    faults = [one.fault for one in shown()]
    assert len(faults) >= ENOUGH
    assert len({fault.name for fault in faults}) == len(faults)
    # a script plays what nothing else can be brought into
    assert sum(fault.means == "a script" for fault in faults) < len(faults) / 4
