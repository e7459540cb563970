"""`plan`, `init` and `render`: a deployment decided, explained, and written down.

The module also reads the figures that the last run of `tune` left in the deployment, and lists the choices for a new
deployment on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Family, entry_text
from dflash_deploy.catalog.recipes import Faster, Offered, faster, offered
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.compose import render as write
from dflash_deploy.deployment.directory import AT_HOME, Deployment
from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.deployment.files import FULL, PUBLIC, not_written, write_if_changed
from dflash_deploy.deployment.lock import command_lock, locked
from dflash_deploy.document import Documented, Hidden, Seconds, shown
from dflash_deploy.errors import BadInput, DeployError, PreflightRefused, UnknownProfile
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.host.ports import free_port
from dflash_deploy.operations.figures import last_figures
from dflash_deploy.operations.foreign import ForeignPlan
from dflash_deploy.plan.choose import (
    RankedPair,
    best,
    choose_profile,
    decided_by,
    fits,
    possible_runtimes,
    published_with,
)
from dflash_deploy.plan.command import engine_command, in_home
from dflash_deploy.plan.memory import MemoryFit
from dflash_deploy.plan.result import Choice, Decision, Plan, RuntimeName
from dflash_deploy.plan.speed import Speed
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.load import Catalog


DEFAULTS = Choice()  # leaves every decision to the plan


ACCEPTED: Final = "accepts"
REFUSED: Final = "refuses"
UNASKABLE: Final = "cannot be asked"
SILENCE: Final = "did not answer"


@dataclass(frozen=True)
class Asked(Documented):
    """What the engine says about the plan, asked without weights (`--ask-engine`)."""

    plan: Hidden[Plan]
    """Checked against the config.json that the engine read."""
    verdict: Literal["accepts", "refuses", "cannot be asked", "did not answer"]
    """Whether it made its configuration."""
    said: str
    """The engine's own sentence if it refuses, or what is known of its end; empty if it accepts."""
    decided: Mapping[str, str]
    """What the engine chose, by name, such as `attention_backend`; empty unless it accepts."""
    seconds: Seconds
    """Duration of the question in seconds."""
    detail: Hidden[str] = ""

    @property
    @shown
    def engine(self) -> str:
        """The engine that was asked, with its version."""
        return self.plan.engine_title

    @cached_property
    def failure(self) -> PreflightRefused | None:
        """Why the engine would not start, as an error; `None` if it accepts the plan or cannot be asked."""
        title, rule = self.plan.engine_title, next(iter(self.plan.errors), None)
        if self.verdict == REFUSED:
            hint = rule.fix if rule is not None else self._known_fix()
            return PreflightRefused(f"{title} refuses this: {self.said}", hint=hint)
        if rule is not None:
            return PreflightRefused(rule.message, hint=rule.fix)
        if self.verdict == SILENCE:
            hint = f"run `dflash-deploy plan` without asking; `dflash-deploy up` shows how {title} starts"
            return PreflightRefused(f"{title} {self.said}", hint=hint, detail=self.detail)
        return None

    def _known_fix(self) -> str:
        plan = self.plan
        from dflash_deploy.diagnosis.diagnose import LogReader  # noqa: PLC0415 - most plans need no diagnosis

        reader = LogReader(load_catalog().failures, plan.engine.engine, plan.engine_version)
        known = reader.read([f"ValueError: {self.said}"]).diagnosis
        return known.do if known else "change the setting that the engine names, in .env or with an option of `plan`"


@dataclass(frozen=True)
class EngineOption(Documented):
    """One option of an engine release, as its own parser knows it."""

    name: str
    """Its name, in one of its spellings."""
    setting: str
    """The setting that has it; empty if it belongs into EXTRA_ARGS."""


@dataclass(frozen=True)
class ExpectedSpeed(Documented):
    """The speed to expect on this machine."""

    expected: Sequence[Speed]
    """What the speed model expects, by concurrency; empty on a machine without a GPU."""
    published: Sequence[PublishedSpeed]
    """What others published for the same hardware and models."""


@dataclass(frozen=True)
class Ranked(Documented):
    """One model in the order for a machine, with the figures that decided."""

    pair: str
    """Name of the model, as `--model` takes it."""
    engine: str
    """Name of the engine release that serves it."""
    max_model_len: int
    """Longest sequence in tokens."""
    max_num_seqs: int
    """Sequences at the same time."""
    kv_cache_dtype: str
    """Type of the KV cache; `auto` is 16 bits."""
    tokens_per_s: float
    """Tokens per second of all requests together at `concurrency`: published for this hardware, else expected."""
    concurrency: int
    """Requests at the same time that the speed is for."""
    published: bool
    """Whether a speed of this model, or of one of the same form, with this engine on this hardware is published."""
    released: date | None
    """When the base model was published; null if unknown."""
    exact: bool
    """Whether its answers are those of BF16: 8 bits or more, or measured to be level."""
    unsafe: str
    """What a user must know before starting it; empty if nothing."""
    decided_by: str
    """The criterion in which the first model is ahead of this one; empty for the first."""


MOST_RANKED = 3  # models that `plan` shows


def first_of_each_form(found: Iterable[RankedPair]) -> Iterator[RankedPair]:
    """The first candidate of each base model and quantization: others of the same form have the same figures."""
    seen = set()
    for one in found:
        form = (one.pair.family.name, one.pair.target.quantisation)
        if form not in seen:
            seen.add(form)
            yield one


def in_order(found: Iterable[RankedPair]) -> Iterator[Ranked]:
    """Candidates with their figures, in their order."""
    first = None
    for one in found:
        first = first or one
        yield Ranked(
            one.pair.name,
            one.engine.name,
            one.sizing.max_model_len,
            one.sizing.max_num_seqs,
            one.sizing.kv_cache_dtype,
            round(one.speed, 1),
            one.concurrency,
            bool(one.published),
            one.pair.family.released,
            one.pair.exact,
            one.unsafe,
            decided_by(first, one),
        )


@dataclass(frozen=True)
class Planned(Documented):
    """What `plan` decides, and why."""

    profile: str
    """Name of the hardware profile."""
    engine: str
    """Name of the engine release."""
    pair: str
    """Name of the model: a target with its drafter."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    command: Sequence[str]
    """Argument list of the engine, without the API key."""
    settings: Sequence[Decision]
    """All settings of the deployment, in the order of `.env`."""
    memory: MemoryFit | None
    """The estimated memory; null if it cannot be estimated."""
    speed: ExpectedSpeed
    """The speed to expect."""
    ranked: Sequence[Ranked]
    """The first models for this machine, whatever the plan serves; none for a machine without a GPU."""
    asked: Asked | None
    """What the engine says about the plan; null without `--ask-engine`."""
    options: Sequence[EngineOption] | None
    """Options of the release that contain the word of `--options`; null without it."""
    plan: Hidden[Plan]
    measured: Hidden[Mapping[tuple[str, str], Mapping[int, float]]] = field(default_factory=dict)
    """Tokens/s of the last run of `bench` by concurrency, by workload and what made the drafts."""

    @classmethod
    def of(cls, made: Plan, published: Sequence[PublishedSpeed] = (), ranked: Sequence[Ranked] = ()) -> Planned:
        """What is shown of a plan. Raises NotPossible if the engine has no option for one of its settings."""
        return cls(
            made.profile.name,
            made.engine.name,
            made.pair.name,
            made.runtime,
            command=engine_command(made),
            settings=made.decisions,
            memory=made.memory,
            speed=ExpectedSpeed(made.speed, published),
            ranked=ranked,
            asked=None,
            options=None,
            plan=made,
        )


def plan(directory: Path, choice: Choice = DEFAULTS) -> Planned:
    """The plan of the deployment in a directory with the choices applied, or of a new one if there is none.

    Writes nothing. Raises what `make_plan` raises; rules that refuse it are `plan.errors`.
    """
    made = chosen(directory, _with_models(choice))
    place = (made.profile.name, made.pair.name)
    catalog = load_catalog()
    published = tuple(speed for speed in catalog.speeds if (speed.profile, speed.pair) == place)
    forms = first_of_each_form(best(made.profile, catalog, choice)) if made.profile.gpus else ()
    ranked = tuple(in_order(islice(forms, MOST_RANKED)))
    return replace(Planned.of(made, published, ranked), measured=_measured(directory))


def _measured(directory: Path) -> Mapping[tuple[str, str], Mapping[int, float]]:
    found: dict[tuple[str, str], dict[int, float]] = {}
    run = last_figures(Deployment(directory))
    for row in run.rows if run else ():
        kind = "without drafts" if row.drafter is False else "MTP" if row.mtp else "DFlash"
        found.setdefault((row.workload, kind), {})[row.concurrency] = row.output_tokens / row.duration_s
    return found


def engine_options(made: Plan, word: str) -> tuple[EngineOption, ...]:
    """The options of the plan's release whose name contains a word. Raises BadInput if they are not known."""
    names = load_catalog().options.get(made.engine.name)
    if names is None:
        raise BadInput(
            f"the options of {made.engine.title} are not known",
            hint=f"known are those of {', '.join(sorted(load_catalog().options))}: choose one with --engine",
        )
    reserved = made.engine.kind.reserved_flags
    wanted = word.lower().replace("_", "-")
    return tuple(
        EngineOption(name, " ".join(one.name for one in reserved[name].fields) if name in reserved else "")
        for name in sorted(names)
        if wanted in name.lower()
    )


def chosen(directory: Path, choice: Choice) -> Plan:
    """The plan of a directory with the choices applied. Raises what `make_plan` raises.

    Another profile is another deployment: then what `.env` says is left out.
    """
    if choice.profile is not None or not Deployment(directory).exists():
        return make_plan(choice)
    deployment = Deployment.existing(directory)
    if choice == DEFAULTS:
        return plan_of(deployment)
    asked = {
        Settings.dflash_pair.name: choice.model or choice.recipe,
        Settings.dflash_engine.name: choice.engine or choice.model or choice.recipe,
        Settings.dflash_runtime.name: choice.runtime,
    }
    kept = (Settings.dflash_profile.name, *(name for name, wish in asked.items() if wish is None))
    identity = {name: deployment.values.get(name, "") for name in kept}
    return make_plan(replace(choice, edited=identity), deployment)


@dataclass(frozen=True)
class Created(Documented):
    """The deployment that `init` wrote."""

    directory: Path
    """The deployment directory."""
    profile: str
    """Name of the hardware profile."""
    pair: str
    """Name of the model: a target with its drafter."""
    engine: str
    """Name of the engine release."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    recipe: ForeignPlan | None
    """What became of each item of the recipe of `--from`; null without it."""
    deployment: Hidden[Deployment]
    plan: Hidden[Plan]
    replaced: Hidden[Mapping[str, tuple[str, str]]]
    """Settings of an earlier `.env` that have another value now, each with both values; no secret is in it."""
    lacks: Hidden[tuple[tuple[str, str], ...]]
    """What Docker or the installed engine lacks, each with its remedy, if the profile is for this machine."""


def init(directory: Path | None, choice: Choice = DEFAULTS, *, force: bool = False) -> Created:
    """Plan a deployment for this machine and write it into a directory, which is created if it is missing.

    `None` is `~/dflash/PROFILE`. `force` writes over a deployment; its key and token stay. Raises BadInput if there is
    one already, if the directory cannot be written, if several machines serve together and the address of rank 0 is
    missing, or for a domain without containers; PreflightRefused if the disk is full; and what `make_plan` raises.
    """
    if directory is not None:
        check_new(Deployment(directory), force=force)
    choice, facts = _with_models(choice), read_facts()
    made = make_plan(choice, facts=facts)
    directory = in_home(AT_HOME / made.profile.name) if directory is None else directory
    deployment = Deployment(directory)
    if made.settings.several_machines and not made.settings.master_addr:
        raise BadInput(
            f"{made.profile.name} is for machines that serve together, and --master-addr is missing",
            hint="--master-addr: the address of rank 0 on the link between them (`ip -brief address` on rank 0)",
        )
    for error in made.errors:
        if error.id == "domain-needs-containers":
            raise BadInput(error.message, hint=error.fix)
    # refused here, before the directory exists, if a value cannot be written to .env
    fill_template(made.values)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with command_lock(deployment, "init"):
            # another `init` may have made it meanwhile
            if not force:
                check_new(deployment)
            before = _values_before(deployment)
            _keep_entry(deployment, choice.family, replaces=bool(before))
            create(deployment, made)
    except OSError as problem:
        if problem.errno in FULL:
            raise not_written(deployment.directory, problem) from None
        said = f"{deployment.directory} cannot be written: {problem.strerror}"
        raise BadInput(said, hint="choose another directory with --dir") from None
    written = Deployment(directory).values
    replaced = {name: (old, new) for name, old in before.items() if (new := written.get(name, "")) != old}
    return Created(
        deployment.directory,
        made.profile.name,
        made.pair.name,
        made.engine.name,
        made.runtime,
        recipe=None,
        deployment=deployment,
        plan=made,
        replaced=replaced,
        lacks=_lacks(made, facts),
    )


def _lacks(made: Plan, facts: HostFacts) -> tuple[tuple[str, str], ...]:
    """What `up` would refuse here; nothing of a plan for another machine."""
    if not fits(made.profile, facts):
        return ()
    # `plan` does not need them
    from dflash_deploy.doctor.check import DoctorContext  # noqa: PLC0415
    from dflash_deploy.doctor.container import runs_it  # noqa: PLC0415

    return tuple((check.saw, check.fix) for check in runs_it(DoctorContext(facts), made) if check.status == "no")


def _with_models(choice: Choice) -> Choice:
    """The choice with an entry for a model or draft model that the catalog does not have."""
    if choice.model is None and choice.drafter_of is None:
        return choice
    from dflash_deploy.operations.described import with_models  # noqa: PLC0415 - asks the Hub

    return with_models(choice)


def _keep_entry(deployment: Deployment, family: Family | None, *, replaces: bool) -> None:
    """Write the entry beside `.env`; of a deployment that is replaced, remove the entry of its model."""
    if family is None and replaces:
        deployment.entry.unlink(missing_ok=True)
    elif family is not None:
        write_if_changed(deployment.entry, entry_text(family), mode=PUBLIC)


def _values_before(deployment: Deployment) -> Mapping[str, str]:
    """The settings that `init --force` replaces; none of a file that cannot be read."""
    with suppress(DeployError):
        return deployment.values if deployment.exists() else {}
    return {}


def check_new(deployment: Deployment, *, force: bool = False) -> None:
    """Raise BadInput if the directory has a deployment, unless `force`, or a file of another program."""
    if (foreign := deployment.foreign_file) is not None:
        raise BadInput(
            f"{foreign} belongs to another program",
            hint="name another directory: `dflash-deploy init --dir ~/dflash/demo`",
        )
    if not force and deployment.exists():
        raise BadInput(
            f"{deployment.directory} already has a deployment",
            hint=(
                "`dflash-deploy set --list` shows settings to change, `dflash-deploy models list` other models, "
                "`dflash-deploy upgrade` the engine; `dflash-deploy init --force` writes all settings again"
            ),
        )


@dataclass(frozen=True)
class Rendered(Documented):
    """The file that `render` wrote."""

    file: Path
    """Path of compose.yaml."""
    changed: bool
    """Whether the file changed."""
    plan: Hidden[Plan]


def render(directory: Path) -> Rendered:
    """Write compose.yaml and the build context of the image from `.env`. Raises NoDeployment, SettingsRefused."""
    with locked(directory, "render") as deployment:
        made = plan_of(deployment)
        return Rendered(deployment.compose_file, write(deployment, made), made)


@dataclass(frozen=True)
class Offer:
    """The choices on a machine. `fitting` is the name of the profile that fits it; empty if none does."""

    facts: HostFacts
    catalog: Catalog
    fitting: str

    def plan(self, profile: str | None = None, recipe: str | None = None) -> Plan:
        """The plan with a profile, else with the one that fits. Raises what `make_plan` raises."""
        return make_plan(Choice(profile=profile, recipe=recipe), facts=self.facts)

    def recipes(self, profile: str) -> tuple[Offered, ...]:
        """The recipes of a profile. Raises UnknownProfile."""
        return offered(self.catalog.profile(profile), self.catalog)

    def runtimes(self, plan: Plan) -> tuple[RuntimeName, ...]:
        """The runtimes that this machine has for the engine, the preferred one first."""
        return tuple(possible_runtimes(self.facts, plan.engine))

    def free_port(self, plan: Plan) -> int:
        """The planned port, or the next one that no program listens on."""
        return free_port(plan.settings.dflash_bind, plan.settings.dflash_port)


def offer(directory: Path | None, facts: HostFacts | None = None) -> Offer:
    """The choices for a new deployment in a directory; `None` is one in `~/dflash`.

    `facts` are read here if they are not given. Raises BadInput if the directory has a deployment already,
    CatalogRefused if the custom catalog is not valid.
    """
    if directory is not None:
        check_new(Deployment(directory))
    facts, catalog = facts or read_facts(), load_catalog()
    try:
        return Offer(facts, catalog, choose_profile(facts, catalog).name)
    except UnknownProfile:
        return Offer(facts, catalog, "")


def faster_than(plan: Plan) -> Faster | None:
    """What others measured to be faster on this hardware; `None` if nothing is, or if the plan is itself unmeasured."""
    catalog = load_catalog()
    own = published_with(plan.profile, plan.pair, plan.engine, catalog)
    first = plan.speed[0] if plan.speed else None
    low, high = (first.dflash_tokens_per_s or first.plain_tokens_per_s) if first else (0.0, 0.0)
    expected = (low, high) if first else None
    return faster(plan.pair, own, expected, offered(plan.profile, catalog))
