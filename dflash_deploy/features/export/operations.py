"""`export`: a deployment as a folder for Kubernetes or for Compose.

`export kubernetes` writes a kustomize folder, `export compose` a folder that runs without this program. Both check what
keeps a deployment from being exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.assets import build_context
from dflash_deploy.deployment.compose import Origin, environment_of, resolved_document, write_folder
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.dotenv import names_a_secret, quote
from dflash_deploy.deployment.files import LOCK_FILE
from dflash_deploy.deployment.front import door_files
from dflash_deploy.document import CommandData, Documented
from dflash_deploy.errors import BadInput, NotPossible, PreflightRefused
from dflash_deploy.features.export.compose import KEPT, ROUTER, ComposeSource, LockedRole, compose_folder, project_of
from dflash_deploy.features.export.folder import folder, image_note, secret_command
from dflash_deploy.features.export.manifests import Cluster, ExportSource, is_pinned
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lock import Lock, read_lock


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


USUAL_CLUSTER = Cluster()

IMAGE_USER = 1000
"""The user and the group of the image, if root owns `.env`: pods do not run as root."""


@dataclass(frozen=True)
class KubernetesExport(Documented):
    """The kustomize folder that `export kubernetes` wrote. No key is in it."""

    directory: Path
    """Where it is."""
    files: Sequence[str]
    """Their paths below the directory."""
    name: str
    """Name of the Deployment and of the Service; the other objects begin with it."""
    image: str
    """Image of the engine."""
    image_pinned: bool
    """Whether the image is named by its digest."""
    image_note: str
    """What the nodes lack of the image; empty if it is named by its digest."""
    secret_command: str
    """The line that creates the Secret with the API keys. It has none itself: it reads .env."""
    domain: str = ""
    """The domain of the deployment, which a cluster has to publish itself; empty without one."""


def export_kubernetes(directory: Path, out: Path, cluster: Cluster = USUAL_CLUSTER) -> KubernetesExport:
    """Write the deployment in a directory as a kustomize folder into `out`, which is created.

    Files of a person are never overwritten. Raises NotPossible for a native deployment, several engines or
    machines, and parallelism in EXTRA_ARGS without a number; BadInput
    for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full; NoDeployment,
    SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    source, texts = rendered(deployment, cluster)
    write_folder(out, Origin(deployment.project_name, "kubernetes"), texts)
    return KubernetesExport(
        out.absolute(),
        tuple(sorted(texts)),
        cluster.name,
        source.image(cluster),
        is_pinned(source.image(cluster)),
        image_note(source, cluster),
        secret_command(source, cluster),
        Settings.dflash_domain.text(deployment.values),
    )


def rendered(deployment: Deployment, cluster: Cluster) -> tuple[ExportSource, dict[str, str]]:
    """The text of each file of the folder, and what it is made from.

    Raises what keeps the deployment from being exported.
    """
    source = _checked_source(deployment)
    texts = folder(source, cluster)
    refuse_secrets(deployment, source.environment, texts)
    return source, texts


def _checked_source(deployment: Deployment) -> ExportSource:
    """What manifests are rendered from. Raises what keeps the deployment from being exported to a cluster."""
    # a cluster publishes its Service itself
    values = {name: value for name, value in deployment.values.items() if name != Settings.dflash_domain.name}
    plan = make_plan(Choice(edited=values), deployment)
    _check(plan, deployment)
    return source_of(deployment, plan, read_lock(deployment.directory / LOCK_FILE))


def source_of(deployment: Deployment, plan: Plan, lock: Lock | None) -> ExportSource:
    """What the folder is rendered from."""
    owner = deployment.env_file.stat()
    settings = plan.settings
    models = lock.models if lock else {}
    return ExportSource(
        plan=plan,
        environment=environment_of(plan),
        env_file=str(deployment.env_file),
        target=_place(deployment, settings.model_host_path),
        drafter=_place(deployment, settings.drafter_host_path) if plan.drafting else "",
        user=owner.st_uid or IMAGE_USER,
        group=owner.st_gid or IMAGE_USER,
        locked={role: f"{model.repo}@{model.commit}" for role, model in models.items()},
    )


def _place(deployment: Deployment, written: str) -> str:
    return str(deployment.path(written).resolve())


def _check(plan: Plan, deployment: Deployment) -> None:
    """Raise what keeps a deployment from being exported."""
    if plan.settings.several_machines:
        raise NotPossible(
            f"{Settings.nodes}={plan.settings.nodes}: a model over several machines cannot be exported",
            hint="use `dflash-deploy fleet up`, or a model that fits on one machine",
        )
    if plan.settings.several_engines:
        raise NotPossible(
            f"{plan.settings.routed_by}: a pod has one engine",
            hint=f"set {Settings.replicas}=1, and export once for each engine with another --name",
        )
    refuse_native(plan, "Kubernetes")
    refuse_errors(deployment, plan)


@dataclass(frozen=True)
class ComposeExport(Documented):
    """The folder that `export compose` wrote. No key is in it."""

    directory: Path
    """Where it is."""
    files: Sequence[str]
    """Their paths below the directory."""
    name: str
    """Name of the Compose project."""
    services: Sequence[str]
    """Its services: one engine, or several with their router, and a door."""
    images: Sequence[str]
    """Their images."""
    locked: Sequence[str]
    """The roles whose weights the folder's lock has."""


DOCUMENTS: Mapping[str, CommandData] = {
    "export kubernetes": CommandData((KubernetesExport,)),
    "export compose": CommandData((ComposeExport,)),
}


def export_compose(directory: Path, out: Path | None) -> ComposeExport:
    """Write the deployment in a directory as a Compose folder into `out`, which is created.

    Without `out`, its name is one that no other deployment has, because it is the name of the Compose project.

    Files of a person are never overwritten. Raises NotPossible for a native deployment and for engines on other hosts;
    BadInput for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full;
    NoDeployment, SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    out = out or Path(f"{deployment.project_name}-export")
    name = project_of(out)
    source, texts = _rendered(deployment)
    write_folder(out, Origin(deployment.project_name, "compose"), texts)
    return ComposeExport(
        out.absolute(),
        tuple(sorted(texts)),
        name,
        tuple(_services(source)),
        tuple(sorted({one["image"] for one in _services(source).values()})),
        tuple(source.locked),
    )


def _services(source: ComposeSource) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = source.document["services"]
    return found


def _rendered(deployment: Deployment) -> tuple[ComposeSource, dict[str, str]]:
    """The text of each file, and what it is made from. Raises what keeps the deployment from being exported."""
    plan = plan_of(deployment)
    refuse_native(plan, "Compose")
    if plan.settings.router_engines:
        raise NotPossible(
            f"{Settings.router_engines}: the router sends to engines of other hosts, which a folder cannot start",
            hint="export the deployment of one host",
        )
    refuse_errors(deployment, plan)
    source = compose_source(deployment, plan)
    texts = compose_folder(source)
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
