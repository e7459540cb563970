"""The engines' parsers, and the table of combinations, printed behind its tests."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.parsers.combinations import PARSERS, planned
from tests.support.parsers import Rejections, parsers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask the parsers are the last: each parser starts once, and runs beside nothing else."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    items.sort(key=lambda item: item in here and "rejections" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def rejections() -> Iterator[Rejections]:
    """What the engines' own parsers say."""
    with parsers() as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many pairs each profile has with each engine."""
    ran = [
        report.nodeid for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "nodeid")
    ]
    if not any("test_combinations" in node for node in ran):
        return
    plans = planned()
    engines = sorted({plan.engine.name for plan in plans})
    counts = Counter((plan.profile.name, plan.engine.name) for plan in plans)
    drawn = Table("pairs that go together", *engines, title=f"{len(plans)} combinations of profile, pair and engine")
    for profile in sorted({plan.profile.name for plan in plans}):
        drawn.add_row(profile, *(str(counts[profile, engine] or "") for engine in engines))
    drawn.add_row("parsers", *(_parsers(name) for name in engines))
    console = Console(width=180)
    with console.capture() as captured:
        console.print(drawn)
    terminalreporter.write(captured.get())


def _parsers(engine: str) -> str:
    family = next(plan.engine.engine for plan in planned() if plan.engine.name == engine)
    return ", ".join(PARSERS.get(family, ("its card",)))
