"""Rules about copied settings: removed and unknown arguments and variables, settings of another engine."""

from __future__ import annotations

import re
from difflib import get_close_matches

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule
from dflash_deploy.serve.engines.base import extra_flags
from dflash_deploy.serve.settings import Settings

FLAG = re.compile(r"-{1,2}[a-zA-Z]")  # what may be an option: -1 and -0.5 are values


def argument_is_gone(plan: Plan, facts: HostFacts) -> Finding | None:
    """An argument or variable that this version of the engine renamed or removed."""
    flags = {word.split("=", 1)[0].replace("_", "-") for word in plan.settings.extra_args if word.startswith("-")}
    written = flags | {name for name, value in plan.values.items() if value}
    for known in plan.engine.renamed:
        if known.old in written and not below(plan.engine_version, known.since):
            refused = known.effect == "refused"
            return Finding(
                id="argument-is-gone",
                severity="error" if refused else "warning",
                message=f"{known.old}: {plan.engine.title} {'refuses' if refused else 'ignores'} it",
                why="it was renamed or removed" if refused else "it was renamed or removed, and has no effect",
                fix=f"write {known.new} instead" if known.new else "remove it",
                source=known.source,
            )
    return None


def argument_is_unknown(plan: Plan, facts: HostFacts) -> Finding | None:
    """An argument that the parser of this release does not know."""
    if not plan.settings.extra_args or plan.engine_version != plan.engine.version:
        return None
    known, gone = load_catalog().options.get(plan.engine.name, frozenset()), {one.old for one in plan.engine.renamed}
    for flag in extra_flags(plan.settings) if known else ():
        if not FLAG.match(flag) or flag in known | gone or plan.engine.kind.reads_as(flag, known):
            continue
        near = get_close_matches(flag, known, n=1)
        return Finding(
            id="argument-is-unknown",
            severity="error",
            message=f"{Settings.extra_args} holds {flag}: {plan.engine.title} has no such option",
            why="the engine would end at once, with the list of its options",
            fix=f"did you mean {near[0]}? Otherwise remove it" if near else "remove it",
            source="the release's own parser",
        )
    return None


def setting_of_another_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """Settings that this engine does not have."""
    kind = plan.engine.kind
    foreign = [f.name for f in Settings.fields() if not f.internal and not kind.knows(f) and f.text(plan.values)]
    if not foreign:
        return None
    return Finding(
        id="setting-of-another-engine",
        severity="warning",
        message=f"{', '.join(foreign)}: {plan.engine.title} has no such setting",
        why="it has no effect",
        fix="remove it; `dflash-deploy set --list` shows the settings of this engine",
    )


RULES: tuple[Rule, ...] = (argument_is_gone, argument_is_unknown, setting_of_another_engine)
