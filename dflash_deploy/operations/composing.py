"""`export compose`: the deployment as a folder that runs without this program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_deploy.assets import build_context
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.door_files import door_files
from dflash_deploy.deployment.dotenv import quote
from dflash_deploy.deployment.exported_folder import write_folder
from dflash_deploy.deployment.render import environment_of, resolved_document
from dflash_deploy.errors import NotPossible
from dflash_deploy.export.compose import DOOR, KEPT, ROUTER, ComposeProject, ComposeSource, LockedRole, project_of
from dflash_deploy.export.compose_folder import compose_folder
from dflash_deploy.intake import MIB, read_text
from dflash_deploy.intake.export_documents import ComposeRecord
from dflash_deploy.operations.exported import (
    ExportCheck,
    check_folder,
    origin_of,
    refuse_errors,
    refuse_native,
    refuse_secrets,
)
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lockfile import LOCK_FILE, read_lock

USUAL_PROJECT = ComposeProject()

COMMAND = "export compose"


@dataclass(frozen=True)
class ComposeExport:
    """The folder that `export compose` wrote. `locked` are the roles whose weights the lock has."""

    directory: Path
    files: Sequence[str]
    name: str
    services: Sequence[str]
    images: Sequence[str]
    locked: Sequence[str]

    def document(self) -> dict[str, object]:
        """The `data` of `export compose --json`; no key is in it."""
        return {
            "directory": str(self.directory),
            "files": list(self.files),
            "name": self.name,
            "services": list(self.services),
            "images": list(self.images),
            "locked": list(self.locked),
        }


def export_compose(directory: Path, out: Path | None, project: ComposeProject = USUAL_PROJECT) -> ComposeExport:
    """Write the deployment in a directory as a Compose folder into `out`, which is created.

    Without `out`, its name is one that no other deployment has, because it is the name of the Compose project.

    Files of a person are never overwritten. Raises NotPossible for a native deployment and for engines on other hosts;
    BadInput for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full;
    NoDeployment, SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    out = out or _usual_folder(deployment)
    name = project_of(out)
    source, texts = _rendered(deployment, project)
    write_folder(out, origin_of(deployment, COMMAND), texts, asdict(project))
    images = {name: project.router_image if name in {DOOR, ROUTER} else project.image for name in _services(source)}
    return ComposeExport(
        out.absolute(),
        tuple(sorted(texts)),
        name,
        tuple(_services(source)),
        tuple(sorted({images[name] or one["image"] for name, one in _services(source).items()})),
        tuple(source.locked),
    )


def _usual_folder(deployment: Deployment) -> Path:
    return Path(f"{deployment.project_name}-export")


def check_compose(directory: Path, out: Path | None) -> ExportCheck:
    """Compare the folder `out` with what an export with the options of the last one would write; writes nothing.

    Raises BadInput if the folder has no export of this deployment, and what `export_compose` raises.
    """
    return check_folder(
        directory,
        out or _usual_folder(Deployment.existing(directory)),
        COMMAND,
        ComposeRecord,
        lambda deployment, record: _rendered(deployment, ComposeProject(**record.options.model_dump()))[1],
    )


def _services(source: ComposeSource) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = source.document["services"]
    return found


def _rendered(deployment: Deployment, project: ComposeProject) -> tuple[ComposeSource, dict[str, str]]:
    """The text of each file, and what it is made from. Raises what keeps the deployment from being exported."""
    plan = plan_of(deployment)
    refuse_native(plan, "Compose")
    if plan.settings.router_engines:
        raise NotPossible(
            f"{Settings.router_engines}: the router sends to engines of other hosts, which a folder cannot start",
            hint="export the deployment of one host, or use `dflash-deploy export kubernetes`",
        )
    refuse_errors(deployment, plan)
    source = compose_source(deployment, plan)
    texts = compose_folder(source, project)
    refuse_secrets(deployment, environment_of(plan), texts)
    return source, texts


def compose_source(deployment: Deployment, plan: Plan) -> ComposeSource:
    """What the folder is made from."""
    lock = read_lock(deployment.directory / LOCK_FILE)
    has_door = plan.settings.several_engines or plan.settings.published
    images = (plan.engine.engine, *((ROUTER,) if has_door else ()))
    written = [name for name in KEPT if name == KEPT[0] or plan.drafting]
    return ComposeSource(
        plan=plan,
        document=resolved_document(deployment, plan, KEPT),
        door=door_files(deployment, plan.settings, exported=True) if has_door else {},
        build={name: read_text(path, limit=MIB) for image in images for name, path in build_context(image).items()},
        places={name: quote(str(deployment.path(plan.values.get(name, "")).resolve())) for name in written},
        lock=lock.text() if lock else "",
        locked={
            role: LockedRole(model.repo, model.commit, {file.path: file.sha256 for file in model.files})
            for role, model in (lock.models if lock else {}).items()
        },
    )
