"""The table of decisions, printed behind the tests."""

from collections import Counter

import pytest
from rich.console import Console
from rich.table import Table

from tests.support.decisions.asked import asked, mended, not_askable, plans


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many combinations of each profile vLLM agreed with, and which it cannot be asked about."""
    ran = [
        report.nodeid for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "nodeid")
    ]
    if not any("tests/decisions" in node for node in ran):
        return
    count = Counter(plan.profile.name for plan in plans())
    agreed = Counter(plan.profile.name for plan, decision in asked() if not decision.refused and not mended(plan))
    changed = Counter(plan.profile.name for plan, decision in asked() if not decision.refused and mended(plan))
    refused = Counter(plan.profile.name for plan, decision in asked() if decision.refused)
    columns = ("combinations", "asked", "agreed", "mended", "refused")
    drawn = Table("vLLM 0.33.0 decides", *columns, title=f"{len(plans())} combinations of profile and pair")
    for name in sorted(count):
        answers = (agreed[name], changed[name], refused[name])
        drawn.add_row(name, *(str(number or "") for number in (count[name], sum(answers), *answers)))
    for name, number in not_askable().items():
        drawn.add_row(name, str(number), "not askable: its Python files are only in its image")
    console = Console(width=140)
    with console.capture() as captured:
        console.print(drawn)
    terminalreporter.write(captured.get())
