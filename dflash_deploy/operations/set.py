"""`set`: change settings of `.env`, checked as `up` checks them, and list what can be set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_deploy.catalog.settings import Described, kind_of, manual
from dflash_deploy.deployment.directory import Deployment, difference
from dflash_deploy.deployment.dotenv import check_keys
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import locked
from dflash_deploy.document import Documented, Hidden
from dflash_deploy.errors import BadInput, PreflightRefused
from dflash_deploy.intake.parse import printable
from dflash_deploy.plan.result import Choice, Finding, Plan
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.serve.engines import DEFAULT, ENGINES
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

# Settings from which the plan derives the defaults of the others.
IDENTITY = tuple(
    field.name
    for field in (Settings.dflash_profile, Settings.dflash_pair, Settings.dflash_engine, Settings.dflash_runtime)
)


@dataclass(frozen=True)
class Changed(Documented):
    """A setting and its values; empty for its default."""

    name: str
    """Name in `.env`."""
    old: str
    """Value before."""
    new: str
    """Value now."""
    default: str
    """The default that applies without a value; empty if the engine chooses."""


@dataclass(frozen=True)
class SettingsChanged(Documented):
    """What `set` wrote."""

    changed: tuple[Changed, ...]
    """The settings whose value changed."""
    restarts: str
    """What the next `up` restarts: `engine`, `door`, or an empty text."""
    findings: Hidden[tuple[Finding, ...]]


@dataclass(frozen=True)
class SettingRow(Documented):
    """One setting."""

    name: str
    """Name in `.env`."""
    value: str
    """Value in this deployment; empty for the default, and for a secret."""
    default: str
    """Default, as the plan of the deployment has it; empty if the engine chooses."""
    kind: str
    """What a value is, with its unit."""
    section: str
    """What it belongs to, such as `Endpoint`."""
    meaning: str
    """What it does."""
    secret: bool
    """Whether `keys` writes it, not `set`."""


@dataclass(frozen=True)
class SettingRows(Documented):
    """The settings of an engine."""

    engine: str
    """The kind of the engine: vLLM, SGLang and llama.cpp have different settings."""
    settings: tuple[SettingRow, ...]
    """The settings, in the order of `.env`."""


_OF_SECRETS = {
    Settings.vllm_api_key.name: "`dflash-deploy keys rotate` replaces it",
    Settings.dflash_api_keys.name: "`dflash-deploy keys add alice` adds a key for Alice, as an example",
}


def assignments(words: Sequence[str]) -> dict[str, str]:
    """The settings that words of the form NAME=VALUE name. Raises BadInput, SettingsRefused for an unknown name."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().upper()
        if not equals or not name:
            raise BadInput(
                f"`{printable(word)}` is not of the form NAME=VALUE", hint=f"such as {Settings.max_num_seqs}=8"
            )
        if name in SECRET_NAMES:
            raise BadInput(f"{name} is a secret", hint=_OF_SECRETS.get(name, "write it into .env with an editor"))
        check_keys([name])
        found[name] = value.strip()
    return found


def change(directory: Path, asked: Mapping[str, str]) -> SettingsChanged:
    """Write settings into `.env`; an empty value removes the setting, so that its default applies.

    The file before is kept as `.env.last`. Raises NoDeployment, DirectoryBusy, SettingsRefused for a value of the wrong
    kind, and PreflightRefused if `up` would refuse the result and accepts the settings as they are.
    """
    with locked(directory, "set") as deployment:
        before = deployment.values
        now = {name: value for name, value in {**before, **asked}.items() if value}
        changed = difference(before, now)
        if not changed:
            return SettingsChanged((), "", ())
        after = plan_of(Deployment(deployment.directory, text=deployment.text_with(asked)))
        findings = _found(deployment, after)
        deployment.with_values(asked)
        record(deployment, "settings", "set", f"wrote {', '.join(map(str, changed))} to .env")
        rows = (
            Changed(row.name, row.good, row.now, "" if row.now else after.values.get(row.name, "")) for row in changed
        )
        only_door = [row.name for row in changed] == [Settings.dflash_domain.name]
        return SettingsChanged(tuple(rows), "door" if only_door else "engine", findings)


def _found(deployment: Deployment, after: Plan) -> tuple[Finding, ...]:
    """The findings that the settings before do not have. Raises PreflightRefused for an error among them."""
    try:
        known = {finding.message for finding in plan_of(deployment).findings}
    except BadInput:
        # they cannot be planned: this change may be the one that corrects them
        return after.findings
    new = tuple(finding for finding in after.findings if finding.message not in known)
    for error in (finding for finding in new if finding.severity == "error"):
        raise PreflightRefused(f"not written, `up` would refuse it: {error.message}", hint=error.fix)
    return new


def settings(directory: Path, word: str = "") -> SettingRows:
    """The settings of the deployment's engine, or of vLLM without a deployment; `word` keeps those that mention it.

    Raises BadInput if none does, and what reading `.env` and planning raise.
    """
    deployment = Deployment(directory)
    values, proposed, engine = dict[str, str](), dict[str, str](), DEFAULT
    if deployment.exists():
        values = dict(Deployment.existing(directory, check=False).values)
        kept = {name: value for name, value in values.items() if name in IDENTITY}
        plan = make_plan(Choice(edited=kept), deployment)
        proposed, engine = dict(plan.values), plan.engine.engine
    meanings = manual(ENGINES[engine].template)
    rows = (_row(field, meanings[field.name], values, proposed) for field in ENGINES[engine].settings)
    found = tuple(row for row in rows if word.lower() in f"{row.name} {row.section} {row.meaning}".lower())
    if not found:
        raise BadInput(f"no setting mentions `{printable(word)}`", hint="`dflash-deploy set --list` shows all of them")
    return SettingRows(engine, found)


def _row(field: Field[Any], described: Described, values: Mapping[str, str], proposed: Mapping[str, str]) -> SettingRow:
    return SettingRow(
        field.name,
        value="" if field.secret else values.get(field.name, ""),
        default=proposed.get(field.name) or field.written(field.default),
        kind=kind_of(field),
        section=described.section,
        meaning=described.text,
        secret=field.secret,
    )
