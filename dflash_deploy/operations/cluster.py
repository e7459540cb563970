"""`export kubernetes`: the deployment as a kustomize folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_deploy.catalog.load import OWN
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.dotenv import quote
from dflash_deploy.deployment.exported_folder import write_folder
from dflash_deploy.deployment.keys_file import keys_file, write_keys
from dflash_deploy.deployment.render import environment_of
from dflash_deploy.deployment.router_files import make_router_keys, router_directory
from dflash_deploy.errors import NotPossible
from dflash_deploy.export.cluster import Cluster, ExportSource, is_pinned
from dflash_deploy.export.folder import folder
from dflash_deploy.export.pull import ENV_FILE as PULL_ENV
from dflash_deploy.export.pull import LOCK_FILE as PULL_LOCK
from dflash_deploy.export.pull import MODELS, MOST_BYTES
from dflash_deploy.export.readme import image_note, router_secret_command, secret_command
from dflash_deploy.intake.export_documents import KubernetesRecord
from dflash_deploy.intake.files import shown
from dflash_deploy.monitoring.files import rule_groups
from dflash_deploy.operations.exported import (
    ExportCheck,
    check_folder,
    origin_of,
    refuse_errors,
    refuse_native,
    refuse_secrets,
)
from dflash_deploy.operations.scraping import limits_of
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.router.files import KEYS
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lockfile import LOCK_FILE, Lock, Role, read_lock
from dflash_deploy.weights.pull import requested_models

USUAL_CLUSTER = Cluster()

COMMAND = "export kubernetes"

Folder = Callable[[ExportSource, Cluster], dict[str, str]]
"""What gives the text of each file of an export."""

ENDPOINT = "HF_ENDPOINT"
"""The variable with the Hub or mirror of a deployment."""

IMAGE_USER = 1000
"""The user and the group of the image, if root owns `.env`: pods do not run as root."""


@dataclass(frozen=True)
class KubernetesExport:
    """The folder that `export kubernetes` wrote. `note` says what the nodes lack of the image; empty if nothing."""

    directory: Path
    files: Sequence[str]
    cluster: Cluster
    image: str
    note: str
    secret_command: str
    router_secret_command: str

    def document(self) -> dict[str, object]:
        """The `data` of `export kubernetes --json`; no key is in it."""
        return {
            "directory": str(self.directory),
            "files": list(self.files),
            "name": self.cluster.name,
            "replicas": self.cluster.replicas,
            "weights": self.cluster.weights,
            "image": self.image,
            "image_pinned": is_pinned(self.image),
            "image_note": self.note,
            "secret_command": self.secret_command,
            "router_secret_command": self.router_secret_command,
        }


def export_kubernetes(directory: Path, out: Path, cluster: Cluster = USUAL_CLUSTER) -> KubernetesExport:
    """Write the deployment in a directory as a kustomize folder into `out`, which is created.

    Files of a person are never overwritten. Raises NotPossible for a native deployment, several engines, a rank
    other than 0, a domain, weights that a claim cannot have, and parallelism in EXTRA_ARGS without a number; BadInput
    for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full; NoDeployment,
    SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    source, texts = rendered(deployment, cluster, folder)
    write_folder(out, origin_of(deployment, COMMAND), texts, asdict(cluster))
    if cluster.routed:
        # the Secrets are made of them: the router's key is among those that the engines accept
        make_router_keys(deployment)
        write_keys(deployment)
    return KubernetesExport(
        out.absolute(),
        tuple(sorted(texts)),
        cluster,
        source.image(cluster),
        image_note(source, cluster),
        secret_command(source, cluster),
        router_secret_command(source, cluster),
    )


def check_kubernetes(directory: Path, out: Path) -> ExportCheck:
    """Compare the folder `out` with what an export with the options of the last one would write; writes nothing.

    Raises BadInput if the folder has no export of this deployment, and what `export_kubernetes` raises.
    """
    return check_cluster(directory, out, COMMAND, folder)


def check_cluster(directory: Path, out: Path, command: str, folder: Folder) -> ExportCheck:
    """Compare a folder for a cluster, as `check_folder` does. `folder` gives the text of each file."""
    return check_folder(
        directory,
        out,
        command,
        KubernetesRecord,
        lambda deployment, record: rendered(deployment, Cluster(**record.options.model_dump()), folder)[1],
    )


def rendered(deployment: Deployment, cluster: Cluster, folder: Folder) -> tuple[ExportSource, dict[str, str]]:
    """The text of each file of a folder for a cluster, and what it is made from.

    Raises what keeps the deployment from being exported.
    """
    source = _checked_source(deployment, cluster)
    texts = folder(source, cluster)
    refuse_secrets(deployment, source.environment, texts)
    return source, texts


def _checked_source(deployment: Deployment, cluster: Cluster) -> ExportSource:
    """What manifests are rendered from. Raises what keeps the deployment from being exported to a cluster."""
    plan = plan_of(deployment)
    _check(plan, deployment)
    lock = read_lock(deployment.directory / LOCK_FILE)
    if cluster.weights == "claim":
        _check_lock(plan, lock)
    return source_of(deployment, plan, lock, cluster.name)


def source_of(deployment: Deployment, plan: Plan, lock: Lock | None, name: str) -> ExportSource:
    """What the folder is rendered from. `name` is that of the deployment in recorded series."""
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
        weights_bytes=sum(model.size for model in models.values()),
        keys_file=str(keys_file(deployment)),
        router_keys_file=str(router_directory(deployment) / KEYS),
        pull_files=_pull_files(deployment, plan, lock) if lock else {},
        rule_groups=rule_groups(name, limits_of(deployment, plan)),
    )


def _pull_files(deployment: Deployment, plan: Plan, lock: Lock) -> dict[str, str]:
    """The deployment of a Job that runs `pull`; empty if its image does not know the models, or the lock is too large.

    Quoted values cannot have a line of their own, so no value adds a setting.
    """
    if os.environ.get(OWN) or len(lock.text()) > MOST_BYTES or not requested_models(deployment, plan):
        return {}
    own = {
        Settings.model_host_path.name: f"{MODELS}/target",
        Settings.drafter_host_path.name: f"{MODELS}/drafter",
        ENDPOINT: deployment.values.get(ENDPOINT, ""),
    }
    values = {name: value for name, value in {**plan.values, **own}.items() if value and name not in SECRET_NAMES}
    lines = "".join(f"{name}={quote(value)}\n" for name, value in values.items())
    return {PULL_ENV: lines, PULL_LOCK: lock.text()}


def _place(deployment: Deployment, written: str) -> str:
    return str(deployment.path(written).resolve())


def _check(plan: Plan, deployment: Deployment) -> None:
    """Raise what keeps a deployment from being exported."""
    if not plan.settings.answers_requests:
        raise NotPossible(
            f"{Settings.node_rank}={plan.settings.node_rank}: this machine answers no requests",
            hint="export the deployment of rank 0",
        )
    if plan.settings.several_engines:
        raise NotPossible(
            f"{plan.settings.routed_by}: several engines behind a router cannot be exported yet",
            hint=f"set {Settings.replicas}=1, and run `dflash-deploy export kubernetes --replicas "
            f"{plan.settings.replicas}`",
        )
    refuse_native(plan, "Kubernetes")
    if plan.settings.dflash_domain:
        raise NotPossible(
            f"{Settings.dflash_domain}={plan.settings.dflash_domain}: Caddy cannot be exported",
            hint=f"leave {Settings.dflash_domain} empty: a cluster publishes the Service with an Ingress or a Gateway",
        )
    refuse_errors(deployment, plan)


def _check_lock(plan: Plan, lock: Lock | None) -> None:
    """Raise NotPossible if the lock does not say what the claim has to have."""
    roles: dict[Role, str] = {"target": plan.settings.model_host_path}
    if plan.drafting:
        roles["drafter"] = plan.settings.drafter_host_path
    for role, path in roles.items():
        if lock is None or role not in lock.models:
            raise NotPossible(
                f"{LOCK_FILE} does not have the {role}: it exists only on this machine, in {shown(Path(path))}",
                hint="run `dflash-deploy pull`, or export with `--weights host-path`",
            )
