"""The table of decisions, printed behind the tests."""

from collections import Counter

import pytest
from rich.console import Console
from rich.table import Table

from tests.support.decisions.asked import asked, mended, not_askable, plans
from tests.support.decisions.warned import explanation


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
    drawn = Table("vLLM 0.33.0 decides", *columns, title="combinations of profile and pair")
    for name in sorted(count):
        drawn.add_row(name, *_row(count[name], agreed[name], changed[name], refused[name]))
    drawn.add_section()
    drawn.add_row("all", *_row(count.total(), agreed.total(), changed.total(), refused.total()))
    drawn.add_section()
    for name, number in not_askable().items():
        drawn.add_row(name, str(number), "not askable: its Python files are only in its image, and in no wheel")
    warned = Counter(explanation(warning) for _, decision in asked() for warning in decision.warnings)
    said = Table("warnings of vLLM", "why the plan says nothing of it")
    for reason, number in warned.most_common():
        said.add_row(str(number), reason or "NOT EXPLAINED")
    console = Console(width=140)
    with console.capture() as captured:
        console.print(drawn)
        console.print(
            f"not askable: {sum(not_askable().values())}. The others have the same decision as one that was asked."
        )
        console.print(said)
    terminalreporter.write(captured.get())


def _row(count: int, agreed: int, changed: int, refused: int) -> tuple[str, ...]:
    return tuple(str(number or "") for number in (count, agreed + changed + refused, agreed, changed, refused))
