"""Rules about what people copy: arguments and variables that are gone, settings of another engine."""

from __future__ import annotations

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule
from dflash_deploy.serve.settings import Settings


def argument_is_gone(plan: Plan, facts: HostFacts) -> Finding | None:
    """Renamed and removed arguments, by version."""
    flags = {word.split("=", 1)[0].replace("_", "-") for word in plan.settings.extra_args if word.startswith("-")}
    written = flags | {name for name, value in plan.values.items() if value}
    for known in plan.engine.renamed:
        if known.old in written and not below(plan.engine_version, known.since):
            effect = "refuses it" if known.effect == "refused" else "does nothing with it"
            return Finding(
                "argument-is-gone",
                "error" if known.effect == "refused" else "warning",
                f"{known.old}: {plan.engine.title} {effect}",
                f"write {known.new} instead" if known.new else "leave it out",
                known.source,
                why="it was renamed or removed" if known.effect == "refused" else "what it was meant to do is not done",
            )
    return None


def setting_of_another_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """Settings that this engine's arguments have no place for."""
    kind = plan.engine.kind
    foreign = [f.name for f in Settings.fields() if not f.internal and not kind.knows(f) and f.text(plan.values)]
    if not foreign:
        return None
    return Finding(
        "setting-of-another-engine",
        "warning",
        f"{', '.join(foreign)}: {plan.engine.title} has no such setting",
        f"empty it; env-templates/{kind.template}.env lists those it has",
        why="it would have no effect",
    )


RULES: tuple[Rule, ...] = (argument_is_gone, setting_of_another_engine)
