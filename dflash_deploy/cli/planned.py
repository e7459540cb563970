"""Lines about a plan that several commands show: its evidence, its models, and whether it would be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.cli.options import size_of
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.hardware import Recipe
    from dflash_deploy.plan.result import Plan


def refusal_of(plan: Plan) -> tuple[str, ...]:
    """One line if `up` would refuse the plan; nothing otherwise."""
    count = len(plan.errors)
    said = "an error" if count == 1 else f"{count} errors"
    return (f"refused  `dflash-deploy up` will not start this: {said} below",) if count else ()


def evidence_of(plan: Plan) -> str:
    """The evidence of the profile or of its recipe, or `untested` if the plan has other models."""
    state = plan.profile.evidence.state
    if recipe := _recipe(plan):
        return recipe.evidence.state
    return state if state == "computed" or plan.pair.name == plan.profile.pair else "untested with this model"


def _recipe(plan: Plan) -> Recipe | None:
    """The recipe with the plan's models and engine, unless the profile's own evidence is about them."""
    recipe = plan.profile.recipe_with(plan.pair.name, plan.engine.name)
    return None if recipe is None or plan.pair.name == plan.profile.pair else recipe


def evidence_line(plan: Plan) -> str:
    """The evidence, and who has run what."""
    if recipe := _recipe(plan):
        return f"{recipe.evidence.state}: {recipe.evidence.by}"
    evidence = plan.profile.evidence
    other = plan.pair.name != plan.profile.pair and evidence.state != "computed"
    own = f"; {plan.profile.pair} is {evidence.state}" if other else ""
    return f"{evidence_of(plan)}{own}: {evidence.by}"


def model_lines(plan: Plan) -> tuple[str, ...]:
    """The target and drafter, what they read, and what they weigh."""
    pair = plan.pair
    reads = "text and images" if pair.sees else "text only, no images"
    weights = pair.target.bytes + (pair.drafter.bytes if plan.drafting else 0)
    notice: tuple[str, ...] = (f"         {pair.target.notice}",) if pair.target.notice else ()
    if pair.drafter.absent and not plan.speculating:
        notice = (*notice, "         without a draft model: it decodes without drafts")
    if pair.family.unknown:
        licence = pair.target.licence or "not stated: find out whether you may use it"
        gated = f"; gated: needs {Settings.hf_token}" if pair.target.gated else ""
        notice = (*notice, f"         licence {licence}{gated}")
    return f"model    {pair.title}", *notice, f"         reads {reads}; {size_of(weights)} of weights"
