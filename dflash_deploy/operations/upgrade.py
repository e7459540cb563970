"""`upgrade` and `models use`: what a new `init` would write is tried in place of what the program chose before.

The user's own settings stay. If the new settings do not start or a check fails, the last working ones return, as with
`rollback`; after a kill `up` and `rollback` find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import entry_text
from dflash_deploy.deployment import upgrading
from dflash_deploy.deployment.directory import Deployment, changes, last_good, remember_good
from dflash_deploy.deployment.files import PUBLIC, not_written, write_if_changed
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.lock import locked
from dflash_deploy.deployment.upgrading import planned_before
from dflash_deploy.document import Documented, Hidden
from dflash_deploy.errors import DOCS, DeployError, EngineAsked, NotPossible, Outdated, PreflightRefused, UnknownRecipe
from dflash_deploy.intake.documents import PlannedSettings
from dflash_deploy.operations.described import with_models
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.test import test
from dflash_deploy.operations.up import Start, start_good, with_weights
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import catalog_for, make_plan, plan_of, plan_to_stop
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP, OFF
from dflash_deploy.startup import PATIENCE

# Settings that belong to a model: the user's own are not kept for another one.
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

PAIR, ENGINE = Settings.dflash_pair.name, Settings.dflash_engine.name
PLACE = (Settings.dflash_profile.name, Settings.dflash_runtime.name)  # settings that every upgrade keeps
BASE, IMAGE = Settings.dflash_base_image.name, Settings.dflash_image.name


@dataclass(frozen=True)
class Wish:
    """The model to move to, and its draft model; `None` keeps that of `.env`."""

    model: str | None = None
    drafter: str | None = None


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


@dataclass(frozen=True)
class Upgraded(Documented):
    """What an upgrade changes, and its result."""

    outcome: Literal["current", "planned", "kept", "back"]
    """`current`: nothing to change. `planned`: nothing was done yet. `kept`: the new settings run. `back`: the old."""
    changes: tuple[UpgradedSetting, ...] = ()
    """The settings that change."""
    kept: tuple[str, ...] = ()
    """Names of the user's own settings, which stay."""
    plan: Hidden[Plan | None] = None
    failure: Hidden[DeployError | None] = None

    @property
    def outdated(self) -> Outdated | None:
        """The finding of `--check`; `None` if nothing is newer."""
        said = ", ".join(row.name if row.name != ENGINE else f"engine {row.new}" for row in self.changes)
        return Outdated(f"newer: {said}", hint="`dflash-deploy upgrade` tries it") if said else None


def look(directory: Path, wish: Wish | None = None) -> Upgraded:
    """What an upgrade would change. Nothing changes.

    Raises NoDeployment, SettingsRefused, NotPossible, what `make_plan` raises, and PreflightRefused if `up` would
    refuse the new settings.
    """
    return _proposed(Deployment.existing(directory), wish or Wish())


def upgrade(
    directory: Path, wish: Wish | None = None, *, agree: Callable[[Upgraded], bool] = bool, reporter: Reporter = SILENT
) -> Upgraded:
    """Move a deployment to newer settings, start and test them, and keep them or go back.

    `agree` gets what would change before anything does. One that was killed while it tried its settings tries them
    again. `failure` of the result says why the old settings are back. Raises what `look` raises; NotPossible if the
    settings of `.env` did not run yet; DownloadFailed before anything changes; EngineAsked.
    """
    with locked(directory, "upgrade") as deployment:
        found, known = _proposed(deployment, wish or Wish()), planned_before(deployment)
        untried = last_good(deployment) is None or changes(deployment)
        if found.changes and untried:
            hint = "`dflash-deploy up` tries them; `init --force` writes all settings again"
            raise NotPossible("the settings of .env did not run yet: there is nothing to go back to", hint=hint)
        is_tried = untried and known is not None and known.before is not None
        if not is_tried and not (found.changes and agree(found)):
            return found
        with engine_work(deployment, "upgrade"):
            return _tried(_written(deployment, found, reporter), found, reporter)


def _written(deployment: Deployment, found: Upgraded, reporter: Reporter) -> Deployment:
    """The deployment with the new settings in `.env`, after their weights were fetched; else nothing has changed."""
    if not found.changes or found.plan is None:
        return deployment
    rows = {row.name: row.new for row in found.changes}
    upgrading.begin_upgrade(deployment, upgrading.planned_settings(found.plan), rows)
    try:
        plan = with_weights(Deployment(deployment.directory, text=deployment.text_with(rows)), reporter, ask=True)
        for error in plan.errors:
            raise PreflightRefused(error.message, hint=error.fix)
    except DeployError as problem:
        upgrading.forget_upgrade(deployment)
        problem.message = f"nothing changed: {problem.message}"
        raise
    return deployment.with_values(rows)


def _tried(deployment: Deployment, found: Upgraded, reporter: Reporter) -> Upgraded:
    """Start and test the new settings, and keep them or go back. A shutdown says nothing about them."""
    what, how = ", ".join(map(str, changes(deployment))), Start(PATIENCE, reporter, remembers=False)
    try:
        started = how.start_and_check(deployment, plan_of(deployment))
        failure: DeployError | None = started.failure or test(deployment.directory, reporter=reporter).failure
    except EngineAsked:
        raise
    except (DeployError, OSError) as problem:
        failure = problem if isinstance(problem, DeployError) else not_written(deployment.directory, problem)
    if failure is None:
        pair = plan_of(deployment).pair
        if pair.name not in load_catalog().pairs:
            family = pair.family.model_copy(update={"targets": [pair.target]})
            write_if_changed(deployment.entry, entry_text(family), mode=PUBLIC)
        remember_good(deployment)
        upgrading.keep_upgrade(deployment)
        record(deployment, "ready", "upgrade", f"kept {what}")
        return replace(found, outcome="kept")
    reporter.note(deployment.redact(f"{failure.message}; going back"))
    try:
        again = start_good(deployment, Start(PATIENCE, reporter))[0].failure
        then = f"the old settings run again{f', but {again.message}' if again else ''}"
    except EngineAsked:
        raise
    except DeployError as second:
        then = f".env has the old settings, which do not start: {second.message}"
        with suppress(DeployError):
            # the new ones may still run
            runtime_for(deployment, plan_to_stop(deployment)).halt()
    failure.message = f"{failure.message}; {then}"
    record(deployment, "rolled-back", "upgrade", failure.message)
    return replace(found, outcome="back", failure=failure)


def _proposed(deployment: Deployment, wish: Wish) -> Upgraded:
    values, planned = deployment.values, planned_before(deployment) or PlannedSettings(program="", values={})
    own = {name: value for name, value in values.items() if _is_own(name, value, planned)}
    choice, plan = _new_plan(deployment, wish, own, planned.recipe if wish == Wish() else "")
    if plan.settings.several_machines:
        raise NotPossible("several machines share this model", hint=f"upgrade each: {DOCS}/how-to/several-machines.md")
    own = {name: value for name, value in own.items() if name in choice.edited}
    rows = _changed(values, own, plan)
    written = {**values, **{row.name: row.new for row in rows}}
    for error in make_plan(Choice(edited=written, family=choice.family), deployment).errors if rows else ():
        raise PreflightRefused(f"nothing changed, `up` would refuse the new settings: {error.message}", hint=error.fix)
    return Upgraded("planned" if rows else "current", rows, tuple(own), plan)


def _is_own(name: str, value: str, planned: PlannedSettings) -> bool:
    """Whether the user chose a setting. A base image that was pinned to its digest is the program's own."""
    if name == ENGINE:
        return bool(value != planned.release.get("name", value))
    program = planned.values.get(name, "")
    return name not in (PAIR, *PLACE) and value != program and not (name == BASE and _tag(value) == program)


def _tag(value: str) -> str:
    return value.partition("@sha256:")[0]


def _changed(values: Mapping[str, str], own: Mapping[str, str], plan: Plan) -> tuple[UpgradedSetting, ...]:
    """The settings that differ in a new plan, without the user's own."""
    decided = {one.name: one for one in plan.decisions}
    rows = []
    for name in dict.fromkeys([*decided, *values]):
        old, new = values.get(name, ""), plan.values.get(name, "")
        if old == new or name in own or name in SECRET_NAMES or (name == BASE and _tag(old) == new) or name == IMAGE:
            continue
        known = decided.get(name)
        reason = known.reason if new and known else "the new plan does not set it"
        rows.append(UpgradedSetting(name, old, new, reason, known.source if new and known else ""))
    return tuple(rows)


def _new_plan(deployment: Deployment, wish: Wish, own: Mapping[str, str], recipe: str) -> tuple[Choice, Plan]:
    """The plan to move to, with the user's own settings, and the choice that made it. Raises what `make_plan` raises.

    `recipe` is that of `init`, while the catalog has it for the same model.
    """
    values, catalog = deployment.values, catalog_for(deployment)
    place, pair = Path(values.get(Settings.model_host_path.name, "")), catalog.pairs.get(values.get(PAIR, ""))
    beside = place.is_absolute() and (pair is None or pair.target.repo is not None)
    release = catalog.engines.get(values.get(ENGINE, ""))
    choice = Choice(
        model=wish.model if wish.drafter is None else wish.model or values.get(PAIR),
        drafter_of=wish.drafter,
        engine=release.engine if release and not recipe and ENGINE not in own else None,
        recipe=recipe or None,
        # the directory that has the weights: those of another model go beside them
        models_dir=place.parent if beside else Choice().models_dir,
        # other sizes depend on the user's own
        max_model_len=_size(own, Settings.max_model_len.name),
        concurrency=_size(own, Settings.max_num_seqs.name),
    )
    if wish.drafter is not None or (wish.model is not None and wish.model not in catalog.pairs):
        choice = with_models(choice)
    kept = {**own, **{name: values.get(name, "") for name in PLACE}}
    if choice.family or (choice.model and catalog.pair(choice.model).name != values.get(PAIR)):
        kept = {name: value for name, value in kept.items() if name not in OF_A_MODEL}
    else:
        drafter = own.get(Settings.dflash_drafter.name, "on").lower()
        choice = replace(choice, drafter=drafter not in OFF, mtp=drafter == MTP)
        kept |= {} if recipe else {PAIR: values.get(PAIR, "")}
    choice = replace(choice, edited=kept)
    try:
        plan = make_plan(choice, deployment)
    except (UnknownRecipe, NotPossible) as problem:
        if not recipe and wish == Wish():
            raise
        if isinstance(problem, NotPossible):
            # the present engine cannot serve the other model
            choice = replace(choice, engine=None)
            return choice, make_plan(choice, deployment)
        plan = None
    if plan is None or (recipe and plan.pair.name != values.get(PAIR)):
        return _new_plan(deployment, wish, own, "")
    return choice, plan


def _size(own: Mapping[str, str], name: str) -> int | None:
    return int(own[name]) if own.get(name, "").isdecimal() else None
