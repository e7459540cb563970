"""`export`: a deployment as a folder for Kubernetes or for Compose.

`export kubernetes` writes a kustomize folder, `export compose` a folder that runs without this program. Both check what
keeps a deployment from being exported, and how a folder differs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from dflash_deploy.assets import build_context
from dflash_deploy.deployment.compose import (
    Origin,
    environment_of,
    read_folder,
    read_record,
    resolved_document,
    write_folder,
)
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.dotenv import names_a_secret, quote
from dflash_deploy.deployment.front import door_files, make_router_keys, router_directory
from dflash_deploy.deployment.keys import keys_file, write_keys
from dflash_deploy.errors import BadInput, NotPossible, PreflightRefused
from dflash_deploy.features.export.cluster import Cluster, ExportSource, is_pinned
from dflash_deploy.features.export.compose import (
    KEPT,
    ROUTER,
    ComposeSource,
    LockedRole,
    compose_folder,
    project_of,
)
from dflash_deploy.features.export.folder import Difference, differences, folder
from dflash_deploy.features.export.readme import image_note, router_secret_command, secret_command
from dflash_deploy.features.monitoring.project import limits_of
from dflash_deploy.features.monitoring.rules import rule_groups
from dflash_deploy.intake.documents import ComposeRecord, ExportRecord, KubernetesRecord
from dflash_deploy.intake.files import MIB, read_text, shown
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.serve.router.files import KEYS
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lock import LOCK_FILE, Lock, Role, read_lock

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


USUAL_CLUSTER = Cluster()

EXPORT_KUBERNETES = "export kubernetes"

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

    Files of a person are never overwritten. Raises NotPossible for a native deployment, several engines or
    machines, a domain, weights that a claim cannot have, and parallelism in EXTRA_ARGS without a number; BadInput
    for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full; NoDeployment,
    SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    source, texts = rendered(deployment, cluster)
    write_folder(out, origin_of(deployment, EXPORT_KUBERNETES), texts, asdict(cluster))
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
    return check_folder(
        directory,
        out,
        EXPORT_KUBERNETES,
        KubernetesRecord,
        lambda deployment, record: rendered(deployment, Cluster(**record.options.model_dump()))[1],
    )


def rendered(deployment: Deployment, cluster: Cluster) -> tuple[ExportSource, dict[str, str]]:
    """The text of each file of the folder, and what it is made from.

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
        rule_groups=rule_groups(name, limits_of(deployment, plan)),
    )


def _place(deployment: Deployment, written: str) -> str:
    return str(deployment.path(written).resolve())


def _check(plan: Plan, deployment: Deployment) -> None:
    """Raise what keeps a deployment from being exported."""
    if plan.settings.several_machines:
        raise NotPossible(
            f"{Settings.nodes}={plan.settings.nodes}: a model over several machines cannot be exported",
            hint="use `dflash-deploy fleet`, or a model that fits on one machine",
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


EXPORT_COMPOSE = "export compose"


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


def export_compose(directory: Path, out: Path | None) -> ComposeExport:
    """Write the deployment in a directory as a Compose folder into `out`, which is created.

    Without `out`, its name is one that no other deployment has, because it is the name of the Compose project.

    Files of a person are never overwritten. Raises NotPossible for a native deployment and for engines on other hosts;
    BadInput for a folder that cannot be used; PreflightRefused if the plan has errors or the disk is full;
    NoDeployment, SettingsRefused, LockRefused.
    """
    deployment = Deployment.existing(directory)
    out = out or _usual_folder(deployment)
    name = project_of(out)
    source, texts = _rendered(deployment)
    write_folder(out, origin_of(deployment, EXPORT_COMPOSE), texts, {})
    return ComposeExport(
        out.absolute(),
        tuple(sorted(texts)),
        name,
        tuple(_services(source)),
        tuple(sorted({one["image"] for one in _services(source).values()})),
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
        EXPORT_COMPOSE,
        ComposeRecord,
        lambda deployment, _: _rendered(deployment)[1],
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
            hint="export the deployment of one host, or use `dflash-deploy export kubernetes`",
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
