"""Rules about copied settings: removed arguments and variables, settings of another engine."""

from __future__ import annotations

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule
from dflash_deploy.serve.settings import Settings


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
        fix=f"empty it; env-templates/{kind.template}.env lists the settings of this engine",
    )


RULES: tuple[Rule, ...] = (argument_is_gone, setting_of_another_engine)
