"""`models list`, `show` and `convert`: targets with their drafters, and which of them go on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.convert import convert
from dflash_deploy.cli.planned import Profile
from dflash_deploy.cli.report import Json, Report, table, verb

if TYPE_CHECKING:
    from dflash_deploy.catalog import ModelPair
    from dflash_deploy.catalog.models import Weights
    from dflash_deploy.rules.survey import Candidate

GB = 1e9

models = typer.Typer(help="Models with their drafters: list, show, convert.", invoke_without_command=True)


@models.callback()
def _list_them(context: typer.Context, as_json: Json = False) -> None:
    if as_json and context.invoked_subcommand is not None:
        raise typer.BadParameter("write --json behind list or show")
    if context.invoked_subcommand is None:
        models_list(profile=None, as_json=as_json)


@verb
def models_list(profile: Profile = None, as_json: Json = False) -> Report:
    """List model pairs: compatible with this machine (or --profile), and not, with the reason."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan.choose import choose_profile
    from dflash_deploy.rules.survey import survey

    catalog, facts = load_catalog(), read_facts()
    chosen = catalog.profile(profile) if profile else choose_profile(facts, catalog)
    candidates = [survey(chosen, pair, facts, catalog) for pair in catalog.pairs.values()]
    good = table("model", "weights", "engine", "context", "streams", "license")
    for candidate in (candidate for candidate in candidates if not candidate.why_not):
        good.add_row(*_compatible(candidate))
    bad = table("model", "why not")
    for candidate in (candidate for candidate in candidates if candidate.why_not):
        bad.add_row(candidate.pair.name, candidate.why_not)
    shown = (f"compatible with {chosen.title}", good, "", "not compatible", bad)
    return Report({"profile": chosen.name, "models": [_row(candidate) for candidate in candidates]}, shown)


def _compatible(candidate: Candidate) -> tuple[str, ...]:
    plan, pair = candidate.plan, candidate.pair
    assert plan is not None  # noqa: S101 - a candidate without a reason against it has a plan
    length, streams = plan.values.get("MAX_MODEL_LEN", ""), plan.values.get("MAX_NUM_SEQS", "")
    size = f"{pair.target.bytes / GB:.1f} + {pair.drafter.bytes / GB:.1f} GB"
    marks = " (gated)" if pair.target.gated or pair.drafter.gated else ""
    return pair.name + marks, size, plan.engine.name, length, streams, pair.target.licence


def _row(candidate: Candidate) -> dict[str, object]:
    pair = candidate.pair
    return {
        "name": pair.name,
        "title": pair.title,
        "target": pair.target.repo or pair.target.bundled,
        "drafter": pair.drafter.repo or pair.drafter.bundled,
        "bytes": pair.target.bytes + pair.drafter.bytes,
        "engine": candidate.plan.engine.name if candidate.plan and not candidate.why_not else None,
        "compatible": not candidate.why_not,
        "why_not": candidate.why_not,
    }


@verb
def models_show(
    name: Annotated[str, typer.Argument(help="A model pair, or its target's repository.")], as_json: Json = False
) -> Report:
    """Show one pair: weights, licence, drafter, acceptance that was measured, and the hardware it goes on."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import HostFacts
    from dflash_deploy.rules.survey import survey

    catalog = load_catalog()
    pair = catalog.pair(name)
    # of the profiles' own hardware, whatever this machine is
    nowhere = HostFacts("", 0, None, None, (), None, None)
    candidates = [survey(profile, pair, nowhere, catalog) for profile in catalog.profiles.values()]
    on = table("profile", "goes there")
    for candidate in candidates:
        engine = candidate.plan.engine.title if candidate.plan else ""
        on.add_row(candidate.profile.name, f"no: {candidate.why_not}" if candidate.why_not else f"yes, with {engine}")
    data = pair.target.model_dump(mode="json") | {
        "drafter": pair.drafter.model_dump(mode="json"),
        "family": pair.family.model_dump(mode="json", exclude={"targets", "drafter"}),
        "profiles": [
            {"name": candidate.profile.name, "compatible": not candidate.why_not, "why_not": candidate.why_not}
            for candidate in candidates
        ],
    }
    return Report(data, (*_described(pair), "", on))


def _described(pair: ModelPair) -> Iterator[str]:
    family, shape = pair.family, pair.shape
    yield f"{pair.name}: {pair.title}"
    if pair.target.notice:
        yield f"notice    {pair.target.notice}"
    yield f"target    {_weights(pair.target)}, {pair.target.quantisation}"
    yield f"drafter   {_weights(pair.drafter)}, block of {pair.drafter.block_size}"
    if pair.drafter.trained_context:
        yield f"          trained on up to {pair.drafter.trained_context} tokens"
    sees = "text and images" if pair.sees else "text"
    yield f"model     {shape.parameters / 1e9:.3g} G parameters, context {shape.context}, {sees}"
    parsers = f"{family.reasoning_parser or 'none'}, {family.tool_call_parser or 'none'}"
    yield f"thinking  {family.thinking}; parsers {parsers}"
    for seen in family.acceptance:
        drafts = f"{seen.draft_tokens} draft tokens"
        yield f"accepted  {seen.length:g} tokens a step: {seen.workload}, {drafts} [{seen.source}]"
    yield f"sources   {pair.target.source or 'none'}; {family.source}"


def _weights(weights: Weights) -> str:
    revision = f"@{weights.revision[:10]}" if weights.revision else ""
    file = f", {weights.file}" if weights.file else ""
    gated = ", gated" if weights.gated else ""
    licence = weights.licence or "no licence stated"
    return f"{weights.repo or weights.bundled}{revision}{file}, {weights.bytes / GB:.3g} GB, {licence}{gated}"


models.command("list")(models_list)
models.command("show")(models_show)
models.add_typer(convert, name="convert")
