"""What the exports have in common: what keeps a deployment from being exported, and how a folder differs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.exported_folder import Origin, read_folder, read_record
from dflash_deploy.deployment.secret_lines import names_a_secret
from dflash_deploy.errors import BadInput, NotPossible, PreflightRefused
from dflash_deploy.export.drift import Difference, differences
from dflash_deploy.intake.export_documents import ExportRecord
from dflash_deploy.intake.files import shown
from dflash_deploy.plan import Plan
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings

R = TypeVar("R", bound=ExportRecord)


@dataclass(frozen=True)
class ExportCheck:
    """What `--check` found: `differs` has each value of the folder that an export by `command` has no longer."""

    directory: Path
    differs: Sequence[Difference]
    command: str

    @property
    def failure(self) -> BadInput | None:
        """Why the command fails; `None` if nothing differs."""
        if not self.differs:
            return None
        count = len(self.differs)
        return BadInput(
            f"{shown(self.directory)} differs from the deployment in {count} place{'s' if count > 1 else ''}",
            hint=f"run `dflash-deploy {self.command}` with the options of the last export; an edited file has to be "
            "removed first",
        )

    def document(self) -> dict[str, object]:
        """The `data` of the check with `--json`."""
        return {"directory": str(self.directory), "differs": [asdict(one) for one in self.differs]}


def origin_of(deployment: Deployment, command: str) -> Origin:
    """Where a folder that `export FORM` writes comes from."""
    return Origin(deployment.project_name, command.removeprefix("export "))


def check_folder(
    directory: Path, out: Path, command: str, kind: type[R], texts_of: Callable[[Deployment, R], Mapping[str, str]]
) -> ExportCheck:
    """Compare the folder `out` with the texts of a fresh export, of which `texts_of` gets the record of the last one.

    Writes nothing. Raises BadInput if the folder has no export of this deployment by `command`, FileRefused for a file
    that cannot be read, NoDeployment, and what `texts_of` raises.
    """
    deployment = Deployment.existing(directory)
    record = read_record(out, origin_of(deployment, command), kind)
    if record is None:
        raise BadInput(f"{shown(out)} has no export", hint=f"run `dflash-deploy {command}` first")
    texts = texts_of(deployment, record)
    # an edited file may have a key, also as a part of a line
    found = differences(read_folder(out, record), texts)
    return ExportCheck(out.absolute(), tuple(_redacted(deployment, one) for one in found), command)


def _redacted(deployment: Deployment, one: Difference) -> Difference:
    line = redact_by_shape(deployment.redact(f"{one.place}={one.folder}"))
    return replace(one, place=redact_by_shape(deployment.redact(one.place)), folder=line.partition("=")[2])


def refuse_native(plan: Plan, where: str) -> None:
    """Raise NotPossible for a deployment that runs natively."""
    if plan.runtime == "native":
        raise NotPossible(
            f"the deployment runs natively, and {where} runs images",
            hint=f"set {Settings.dflash_runtime}=compose in .env, then prove it with `up` and `test`",
        )


def refuse_errors(deployment: Deployment, plan: Plan) -> None:
    """Raise PreflightRefused if the plan has errors."""
    for finding in plan.errors:
        raise PreflightRefused(deployment.redact(finding.message), hint=finding.fix)


def refuse_secrets(deployment: Deployment, environment: Mapping[str, str], texts: Mapping[str, str]) -> None:
    """Raise BadInput if a file would have a secret: a person may have written one into a setting or a path."""
    looks = [f"the setting {name}" for name, value in environment.items() if _like_a_secret(name, value)]
    known = [f"the file {name}" for name, text in texts.items() if deployment.redact(text) != text]
    for what in (*looks, *known):
        raise BadInput(
            f"{what} would have a key or a token, and an exported folder is kept in Git",
            hint=f"remove it from .env; keys are in {Settings.vllm_api_key} and {Settings.dflash_api_keys} only",
        )


def _like_a_secret(name: str, value: str) -> bool:
    line = f"{name}={value}"
    return (name != SECRETS_FILE and names_a_secret(name)) or redact_by_shape(line) != line
