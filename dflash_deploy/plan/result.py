"""The result of planning: settings with their origin and reason, and findings about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

from dflash_deploy.catalog import EngineRelease, ModelPair, Profile
from dflash_deploy.plan.memory import MemoryFit
from dflash_deploy.plan.speed import Speed
from dflash_deploy.plan.wishes import Checkpoints, RuntimeName
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.settings import Settings

T = TypeVar("T")

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Decision:
    """The value of one setting as `.env` writes it, its origin, and its reason."""

    name: str
    value: str
    origin: str
    reason: str
    source: str = ""


def decided(field: Field[T], value: T, origin: str, reason: str, source: str = "") -> Decision:
    """A decision about a setting, its value typed."""
    return Decision(field.name, field.written(value), origin, reason, source)


@dataclass(frozen=True)
class Finding:
    """What a rule found in a plan. `up` refuses a plan with an `error`.

    `message` says what was found, `why` why it matters, `fix` what to do.
    """

    id: str
    severity: Severity
    message: str
    fix: str
    source: str = ""
    why: str = ""


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

    def setting_rows(self) -> list[dict[str, str]]:
        """The settings as rows for `--json`."""
        return [asdict(decision) for decision in self.decisions]
