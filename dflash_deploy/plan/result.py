"""A plan: the options it was made with, its settings with origin and reason, and the findings about them.

It includes the known facts about the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Family, ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.document import Documented
from dflash_deploy.plan.memory import MemoryFit
from dflash_deploy.plan.speed import Speed
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Goal, RuntimeName, Settings

__all__ = ["GOALS", "RUNTIMES", "Checkpoints", "Choice", "Goal", "RuntimeName"]

RUNTIMES: tuple[RuntimeName, ...] = get_args(RuntimeName)
GOALS: tuple[Goal, ...] = get_args(Goal)


@dataclass(frozen=True)
class Choice:
    """What the user asked for. `None` leaves it to the plan; `edited` holds the lines of an existing `.env`.

    `model` is the name of a pair or the repository of its target, `engine` a release or an engine's name, `recipe` the
    name of a recipe of the profile. `drafter_of` names a draft model, `mtp`, or `off`; `mtp` asks for the target's MTP
    head, `family` is an entry beside the catalog's.
    """

    profile: str | None = None
    model: str | None = None
    engine: str | None = None
    recipe: str | None = None
    runtime: RuntimeName | None = None
    goal: Goal | None = None
    max_model_len: int | None = None
    concurrency: int | None = None
    drafter: bool = True
    drafter_of: str | None = None
    mtp: bool = False
    family: Family | None = None
    host: str | None = None
    port: int | None = None
    domain: str | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    models_dir: Path = Path("~/models")
    edited: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoints:
    """What is known about weights: their config.json, or a GGUF's header. `None`: unknown.

    `tokenizer`, `template` and `processor` say whether the target has a tokenizer, a chat template and a processor of
    images, `head` whether its files hold weights of an MTP head. `largest_token` is the largest id of its added tokens,
    `projector` the architecture of the GGUF that is named as projector, `target_bytes` the size of the target's weights
    if all of them are on disk. `snapshots` has a directory to use instead for
    each setting that names a model's folder in the cache of the Hub's client.
    """

    target: Mapping[str, object] | None = None
    drafter: Mapping[str, object] | None = None
    tokenizer: bool | None = None
    template: bool | None = None
    head: bool | None = None
    processor: bool | None = None
    largest_token: int | None = None
    projector: str | None = None
    target_bytes: int | None = None
    snapshots: Mapping[str, str] = field(default_factory=dict)


T = TypeVar("T")

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Decision(Documented):
    """One setting of the plan."""

    name: str
    """Name in `.env`, as in docs/reference/settings.md."""
    value: str
    """Value as `.env` has it; empty if the engine chooses."""
    origin: str
    """Where the value comes from, such as `profile rtx-3090`, `--goal latency` or `.env`."""
    reason: str
    """Why it has this value."""
    source: str = ""
    """Document or measurement behind the reason; empty if there is none."""


def decided(field: Field[T], value: T, origin: str, reason: str, source: str = "") -> Decision:
    """A decision about a setting, its value typed."""
    return Decision(field.name, field.written(value), origin, reason, source)


@dataclass(frozen=True)
class Finding(Documented):
    """What a rule found in the plan. `up` refuses a plan with a finding of severity `error`."""

    id: str
    """Id of the rule, as in docs/reference/rules.md."""
    severity: Severity
    """How serious it is: `up` refuses an `error`, shows a `warning`, and leaves out a `note`."""
    message: str
    """What was found, with the values."""
    fix: str
    """What to do."""
    source: str = ""
    """Where the fact comes from; empty if it needs no source."""
    why: str = ""
    """Why it matters; empty if the message says it."""


@dataclass(frozen=True)
class Plan:
    """All decisions for one deployment, without secrets; `settings` are their values, typed.

    `engine_version` is the installed one if the native runtime starts that, else the release's. `weights_of` are the
    pairs that the target's directory is named after.
    """

    profile: Profile
    pair: ModelPair
    engine: EngineRelease
    engine_version: str
    runtime: RuntimeName
    decisions: tuple[Decision, ...]
    settings: Settings
    checkpoints: Checkpoints
    findings: tuple[Finding, ...] = ()
    memory: MemoryFit | None = None
    speed: tuple[Speed, ...] = ()
    weights_of: tuple[str, ...] = ()

    @property
    def values(self) -> Mapping[str, str]:
        """The settings as `.env` writes them, by name: for `.env`, Compose and the engine's environment."""
        return {decision.name: decision.value for decision in self.decisions}

    @property
    def drafting(self) -> bool:
        """Whether a drafter with its own weights makes drafts."""
        return self.settings.drafting

    @property
    def uses_mtp_head(self) -> bool:
        """Whether the target's MTP head makes drafts."""
        return self.settings.uses_mtp_head

    @property
    def speculating(self) -> bool:
        """Whether drafts are made, by drafter or MTP head."""
        return self.settings.speculating

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with which `up` refuses to start."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def engine_title(self) -> str:
        """The engine's title, with the installed version if that differs."""
        version = self.engine_version
        return self.engine.title if version == self.engine.version else f"{self.engine.title}, installed {version}"
