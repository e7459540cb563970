"""docs/reference/diagnosis.md: how often a named cause was right, on logs that no row had been made for."""

from __future__ import annotations

from collections import Counter

from dflash_deploy.catalog.load import load_catalog
from tools.diagnosis.score import BLIND_SETS, FROZEN, HALVES, alarm, cases, scored
from tools.reference.markdown import BUILT, joined

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
After each run, failures that were not named
got rows, and wrong rows were corrected. So each set shows what the rows were worth for failures of others."""


def page() -> str:
    """The text of the page."""
    source = BUILT.format(source="`tools/diagnosis`")
    return joined(_INTRODUCTION, "", source, "", "## The first runs", "", _first(), "", "## Today", "", _today())


def _first() -> str:
    """The sums over the first run of each set, and the range of the sets."""
    runs = tuple(FROZEN.values())
    named, failures = (sum(getattr(run.whole, name) for run in runs) for name in ("named", "failures"))
    shares = sorted(run.whole.named / run.whole.failures for run in runs)
    return (
        f"In the first runs of {len(runs)} sets, {named} of {failures} failures were named ({named / failures:.0%}; "
        f"{shares[0]:.0%} to {shares[-1]:.0%} of a set),\nand {sum(run.whole.wrong for run in runs)} wrongly. "
        f"Of {sum(run.healthy for run in runs)} logs of engines that worked, {sum(run.alarms for run in runs)} were "
        f"called ill. {_AFTER}"
    )


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
