"""docs/reference/diagnosis.md: how often a named cause was right, on logs that no row had been made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dflash_deploy.catalog.load import load_catalog
from tools.diagnosis.score import BLIND_SETS, FROZEN, HALVES, alarm, cases, scored
from tools.reference.markdown import GENERATED, joined, table

_INTRODUCTION = """\
# How often a named cause is right

`up`, `status` and `explain` name the cause of a [known failure](failures.md), and show the decisive lines of any other.
These are the results on logs of other people, taken from public reports of failures whose cause was found there. Who
collected a set had not seen the known failures. The right answers were written down before the diagnosis ran for the
first time.

- **named**: what is said to have happened did happen, and the remedy does not lead away from what helps. It may say
  less than a person could: that a check failed, with its message.
- **wrong**: another cause was named. The aim is 0; most sets had one or two.
- **called ill**: a cause was named in the log of an engine that worked.

Most logs are excerpts of reports, often without the lines before them. A log of your own has more to go by."""

_AFTER = """\
Set 1 has no record of its first run. After each first run, many failures that were not named got rows, and wrong rows
were corrected. So a set shows the state of its day, and the next set what the rows are worth for other failures."""


def page() -> str:
    """The text of the page."""
    source = GENERATED.format(source="`tools/diagnosis`")
    head = ("set", "failures", "named", "wrong", "healthy logs", "called ill")
    return joined(
        _INTRODUCTION, "", source, "", "## The first run of each set", "", *table(head, _rows()), _AFTER, "",
        "## Today", "", _today(),
    )  # fmt: skip


def _rows() -> Iterator[tuple[str, ...]]:
    for number, first in enumerate(FROZEN.values(), 2):
        whole = first.whole
        share = f"{whole.named} ({whole.named / whole.failures:.0%})"
        yield f"{number}", f"{whole.failures}", share, f"{whole.wrong}", f"{first.healthy}", f"{first.alarms}"


def _today() -> str:
    sets = (*HALVES, *BLIND_SETS)
    failures = [case for name in sets for case in cases(name) if case.decisive]
    healthy = [case for name in (*BLIND_SETS, "healthy") for case in cases(name) if not case.decisive]
    results = [scored(case) for case in failures]
    found = Counter(how for how, _ in results)
    families = {failure.id for failure in load_catalog().failures if failure.general}
    general = sum(how == "named" and named in families for how, named in results)
    alarms = sum(bool(alarm(case)) for case in healthy)
    return (
        f"Of all {len(failures)} failures, {found['named']} are named rightly, {general} of them only by their family, "
        f"and {found['wrong']} wrongly.\n"
        f"Of {found['part named']} others, only the part of the engine is known that failed. "
        f"The decisive line is shown for these and the other {found['line shown']}.\n\n"
        f"{alarms} of {len(healthy)} logs of engines that worked are called ill."
    )
