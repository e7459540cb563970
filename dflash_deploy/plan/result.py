"""What planning yields: settings that know where they come from, and findings about them."""

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
    """The value of one setting as `.env` writes it, where it came from, and why it is so."""

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
    """Something about a plan that its user should know. `error` means that `up` refuses it.

    `message` is what was seen, `why` what comes of it, `fix` what to do.
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

    `engine_version` is the installed one where the native runtime will start that, else the release's. `weights_of` are
    the pairs that the target's directory is named after.
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
        """Whether a drafter is used, which has weights of its own."""
        return self.settings.drafting

    @property
    def uses_mtp_head(self) -> bool:
        """Whether the target's own MTP head makes the drafts."""
        return self.settings.uses_mtp_head

    @property
    def speculating(self) -> bool:
        """Whether drafts are made, by drafter or MTP head."""
        return self.settings.speculating

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that forbid starting."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def engine_title(self) -> str:
        """The engine in words, with the version that will run."""
        version = self.engine_version
        return self.engine.title if version == self.engine.version else f"{self.engine.title}, installed {version}"

    def setting_rows(self) -> list[dict[str, str]]:
        """The settings as rows for `--json`."""
        return [asdict(decision) for decision in self.decisions]
