"""`compose.yaml` and the images' build context, from the fragments in compose/ and a plan.

The services are one engine, or several behind a router in a network of their own. The build context in `.dflash/build/`
has the files that the Dockerfiles of the images copy.
"""

from __future__ import annotations

import copy
import filecmp
import hashlib
import hmac
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.assets import asset_text, build_context, build_digest
from dflash_deploy.catalog.settings import passed_on
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.deployment.files import (
    PRIVATE,
    PUBLIC,
    write_atomically,
    write_if_changed,
)
from dflash_deploy.deployment.front import (
    DOOR,
    ROUTER,
    SERVICE,
    door_files,
    engine_service,
    make_router_keys,
    router_keys,
    write_door,
)
from dflash_deploy.deployment.keys import remove_keys, write_keys
from dflash_deploy.deployment.upgrading import planned_settings, remember_planned
from dflash_deploy.errors import FileRefused
from dflash_deploy.host.gpu import VISIBLE, threads_here
from dflash_deploy.intake.documents import read_state_text
from dflash_deploy.intake.files import read_text
from dflash_deploy.intake.parse import Invalid, parse_packaged_yaml, parse_yaml
from dflash_deploy.plan.replicas import IN_ORDER, gpus_of_member, member_of
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.serve.gateway.health import MEMORY_FILE
from dflash_deploy.serve.settings import Settings

ENGINES_NETWORK = "engines"
"""The network of several engines, in which only their router and their door are too."""

FINGERPRINT = "dev.dflash.settings-hash"
"""The label with a hash of everything that a container is created with."""

DOOR_LABEL, ROUTER_LABEL, REPLICA_LABEL = "dev.dflash.door", "dev.dflash.router-keys", "dev.dflash.replica"
"""The labels with a hash of the door's files and of the router's keys, and the number of one of several engines."""

VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?:-(?P<default>[^}]*)|\?[^}]*))?\}")
"""A variable as the fragments of compose/ have them."""

_ANY_VARIABLE = re.compile(r"\$\{?(?P<name>\w+)")
"""A variable in any notation of Compose: a user writes the override."""


def member_plans(plan: Plan) -> tuple[Plan, ...]:
    """The plan of each of several engines on this machine, in order; empty if there is only one."""
    numbers = range(1, plan.settings.replicas + 1) if plan.settings.several_engines else ()
    return tuple(member_plan(plan, number) for number in numbers)


def member_plan(plan: Plan, number: int) -> Plan:
    """The plan of one of several engines on this machine, counted from 1."""
    return member_of(plan, number, () if plan.profile.match.gpus else threads_here())


def shared_out(document: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the Compose file of a single engine as that of several: a service for each, and only the door published.

    `document` has the services of one engine, of the router and of the door.
    """
    services = dict(document["services"])
    single, router, door = (services.pop(name) for name in (SERVICE, ROUTER, DOOR))
    engines = {
        engine_service(number): _engine(single, plan, member, number)
        for number, member in enumerate(member_plans(plan), start=1)
    }
    # the router's service builds the image of both
    del door["build"]
    return {**document, "services": {**engines, ROUTER: router, DOOR: door, **services}}


def with_fronts(document: dict[str, Any], deployment: Deployment, settings: Settings) -> dict[str, Any]:
    """Give the door and the router their image, the engine's user, and a label that changes with the door's files.

    `document` has the services of one engine, beside those that it has of the two.
    """
    single = document["services"][SERVICE]
    for name in {ROUTER, DOOR} & document["services"].keys():
        service = document["services"][name]
        service["build"]["context"] = single["build"]["context"]
        service["image"] = f"dflash-deploy/router:{__version__}-{build_digest(ROUTER)}"
        service["user"] = single["user"]
        service["labels"] = {"dev.dflash.version": __version__}
        if name == DOOR:
            # Caddy reads its files only when it starts: a changed label creates the container again
            text = "".join(door_files(deployment, settings).values())
            service["labels"][DOOR_LABEL] = hashlib.sha256(text.encode()).hexdigest()
    return document


def _engine(single: Mapping[str, Any], plan: Plan, member: Plan, number: int) -> dict[str, Any]:
    """One of several engines: with its share of the machine, in the private network, and not published."""
    service = copy.deepcopy(dict(single))
    service.pop("ports", None)
    service["networks"] = [ENGINES_NETWORK]
    environment = service["environment"]
    environment[MEMORY_FILE] = f"/cache/dflash-health-{number}.json"
    service["labels"] = {**service["labels"], REPLICA_LABEL: str(number)}
    if gpus := gpus_of_member(plan, number):
        environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpus)
        for name in (VISIBLE, IN_ORDER):
            # the container has only these GPUs, and counts them from 0
            environment.pop(name, None)
        for device in service["deploy"]["resources"]["reservations"]["devices"]:
            device.pop("count", None)
            device["device_ids"] = list(gpus)
    if cores := member.values.get(Settings.dflash_cores.name):
        environment[Settings.dflash_cores.name] = service["cpuset"] = cores
    return service


def with_fingerprints(document: dict[str, Any], deployment: Deployment) -> dict[str, Any]:
    """Label each of several engines with a hash of its service, of the user's override, and of the values of both.

    Raises FileRefused if the override cannot be read.
    """
    # Compose merges it into the services; a directory of this name is not passed to Compose either
    override = read_text(deployment.override_file) if deployment.override_file.is_file() else ""
    for name, service in document["services"].items():
        if name.startswith(f"{SERVICE}-"):
            service["labels"][FINGERPRINT] = _fingerprint(service, override, deployment.values)
    return document


def rendered_fingerprint(deployment: Deployment, service: str) -> str:
    """The hash of a service in `compose.yaml`; empty if the file is missing or damaged, or has no such service."""
    try:
        document = parse_yaml(read_text(deployment.compose_file))
        return str(document["services"][service]["labels"][FINGERPRINT])
    except (FileRefused, Invalid, KeyError, TypeError):
        return ""


def _fingerprint(service: Mapping[str, Any], override: str, values: Mapping[str, str]) -> str:
    text = yaml.safe_dump(dict(service)) + override
    used = ((name, values.get(name, "")) for name in sorted(set(_names(text))))
    return hashlib.sha256(repr((text, *used)).encode()).hexdigest()[:12]


def _names(text: str) -> Iterator[str]:
    return (found["name"] for found in _ANY_VARIABLE.finditer(text))


NAME = "build"
"""The directory's name in `.dflash/`. `build.PID` is one that is not complete yet, or not needed any more."""


def stage_build_context(state: Path, images: Iterable[str]) -> None:
    """Create the build context of these images in `state`, with the paths of the repository, unless it is there.

    It is made in a temporary directory and renamed, so that a command that is killed leaves it complete or absent.
    """
    remove_unused_contexts(state)
    context, files = state / NAME, {name: path for image in images for name, path in build_context(image).items()}
    if _is_complete(context, files):
        return
    staged, old = state / f"{NAME}.{os.getpid()}", state / f"{NAME}.{os.getpid()}.old"
    try:
        for name, source in files.items():
            place = staged / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        with suppress(FileNotFoundError):
            context.rename(old)
        staged.rename(context)
    finally:
        remove_unused_contexts(state)


def remove_unused_contexts(state: Path) -> None:
    """Remove what commands that were killed left of a build context. The deployment's lock must be held."""
    for left in state.glob(f"{NAME}.*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(OSError):
                left.unlink()


def _is_complete(context: Path, files: Mapping[str, Path]) -> bool:
    """Return whether a directory contains exactly these files; a power cut may have emptied some."""
    there = {str(path.relative_to(context)) for path in context.rglob("*") if not path.is_dir()}
    if there != set(files) or context.is_symlink():
        return False
    try:
        return all(filecmp.cmp(source, context / name, shallow=False) for name, source in files.items())
    except OSError:
        return False


SALT = "label-salt"
"""The file in `.dflash/`, readable only by its owner, with a random text for the label of the secrets."""

BUILD_CONTEXT = "./.dflash/build"

HEADER = """\
# Generated by dflash-deploy {version} from .env; `up` overwrites it: put additions into compose.override.yaml.
# Profile {profile}, pair {pair}, engine {engine}."""
HEADER_SINGLE = " `docker compose up -d` works here without dflash-deploy.\n"
HEADER_SEVERAL = " dflash-deploy tells the router which engines it has.\n"


def create(deployment: Deployment, plan: Plan) -> None:
    """Write `.env` and `compose.yaml` of a new deployment.

    Secrets of an existing `.env` are kept, also further keys of clients, and the file itself as `.env.last`. `.env` is
    written last: the directory has a deployment from then on, so a command that is killed leaves none or all of it.
    """
    existed = deployment.exists()
    secrets = deployment.secrets if existed else {}
    key = secrets.get(Settings.vllm_api_key.name) or generate_key()
    token = secrets.get(Settings.hf_token.name) or Secret("")
    # the image stays empty: the installed release decides, until the user sets one
    own = {Settings.dflash_image: "", Settings.vllm_api_key: key.reveal(), Settings.hf_token: token.reveal()}
    if further := secrets.get(Settings.dflash_api_keys.name):
        own[Settings.dflash_api_keys] = further.reveal()
    values, engine = {**plan.values, **{field.name: value for field, value in own.items()}}, plan.engine.engine
    text = fill_template(values, engine)
    try:
        render(Deployment(deployment.directory, text=text), plan)
        if existed:
            deployment.keep_last(text)
        remember_planned(deployment, planned_settings(plan))
        deployment.write_env(values, engine)
    except BaseException:
        if not existed:
            # without .env it would belong to nothing
            with suppress(OSError):
                deployment.compose_file.unlink()
            remove_keys(deployment)
        raise


def render(deployment: Deployment, plan: Plan, apart: Mapping[int, Plan] = MappingProxyType({})) -> bool:
    """Write `compose.yaml` and the build context; return whether `compose.yaml` changed.

    `apart` has other plans of the deployment, for some of several engines by number.
    """
    state = deployment.make_state()
    if plan.settings.several_engines:
        # the engines accept one of them
        make_router_keys(deployment)
    has_door = _has_door(plan)
    if has_door and plan.runtime == "compose":
        write_door(deployment, plan.settings)
    write_keys(deployment)
    stage_build_context(state, (plan.engine.engine, *((ROUTER,) if has_door else ())))
    if not _salt(deployment):
        write_atomically(state / SALT, generate_key().reveal(), mode=PRIVATE)
    changed = write_if_changed(deployment.compose_file, compose_text(deployment, plan, apart), mode=PUBLIC)
    deployment.keep_project_name()
    return changed


def compose_text(deployment: Deployment, plan: Plan, apart: Mapping[int, Plan] = MappingProxyType({})) -> str:
    """Return the merged Compose file. Settings stay variables; it contains no secrets. `apart` is as for `render`."""
    document = _document(deployment, plan)
    for number, other in apart.items():
        name = engine_service(number)
        document["services"][name] = _document(deployment, other)["services"][name]
    several = plan.settings.several_engines
    if several:
        document = with_fingerprints(document, deployment)
    header = (HEADER + (HEADER_SEVERAL if several else HEADER_SINGLE)).format(
        version=__version__, profile=plan.profile.name, pair=plan.pair.name, engine=plan.engine.name
    )
    return header + yaml.safe_dump(document, sort_keys=False, width=120)


def _document(deployment: Deployment, plan: Plan) -> dict[str, Any]:
    """The Compose file of a plan, without the fingerprints of several engines."""
    filled: dict[str, Any] = _filled(_with_variables(deployment, plan), deployment, plan)
    return filled


def _with_variables(deployment: Deployment, plan: Plan) -> dict[str, Any]:
    """The Compose file of a plan, with a variable for each setting."""
    document = merge(parse_packaged_yaml(asset_text("compose", name)) for name in _fragments(plan))
    document["name"] = deployment.project_name
    service = document["services"][SERVICE]
    service["build"]["context"] = BUILD_CONTEXT
    service["user"] = _owner(deployment)
    service["labels"] = {
        "dev.dflash.version": __version__,
        "dev.dflash.profile": plan.profile.name,
        "dev.dflash.pair": plan.pair.name,
        "dev.dflash.engine": plan.engine.name,
        # Compose ignores changes of a file secret: a changed key must change the label to recreate the container
        "dev.dflash.secrets-hash": _secrets_hash(deployment),
    }
    for name in plan.values:
        if plan.values[name] and passed_on(name):
            service["environment"][name] = f"${{{name}:-}}"
    if not plan.settings.answers_requests:
        service["healthcheck"] = {"disable": True}
    document["secrets"]["dotenv"]["file"] = "./.env"
    document = with_fronts(document, deployment, plan.settings)
    several = plan.settings.several_engines
    if several and (keys := router_keys(deployment)):
        # the router reads its keys only when it starts
        document["services"][ROUTER]["labels"][ROUTER_LABEL] = _salted(deployment, keys.admin, keys.probe)
    return shared_out(document, plan) if several else document


def _has_door(plan: Plan) -> bool:
    return plan.settings.several_engines or plan.settings.published


def _filled(node: Any, deployment: Deployment, plan: Plan) -> Any:
    """Return the document with the planned values that `.env` does not have."""
    return _mapped(node, lambda text: VARIABLE.sub(lambda found: _planned(found, deployment.values, plan.values), text))


def _mapped(node: Any, change: Callable[[str], str]) -> Any:
    """Return the document with each text changed."""
    if isinstance(node, dict):
        return {key: _mapped(value, change) for key, value in node.items()}
    if isinstance(node, list):
        return [_mapped(value, change) for value in node]
    return change(node) if isinstance(node, str) else node


def _planned(variable: re.Match[str], written: Mapping[str, str], planned: Mapping[str, str]) -> str:
    """A variable, with the planned value as its default if `.env` has none, as one of another tool.

    The value itself if `.env` has another one: a plan that the engine runs with for a while differs from it.
    """
    name = variable["name"]
    value = planned.get(name, "")
    if written.get(name):
        # Compose expands a single $
        return variable[0] if value == written[name] or name not in planned else value.replace("$", "$$")
    return f"${{{name}:-{value}}}" if value else variable[0]


def _fragments(plan: Plan) -> list[str]:
    """The fragments of compose/ that a plan needs, in the order in which they are merged."""
    names = ["base", "keys", *plan.engine.kind.fragments]
    if plan.drafting:
        names.append("drafter")
    elif plan.uses_mtp_head:
        names.append("mtp")
    if _has_door(plan):
        names.append("door")
    names.append("nodes" if plan.settings.several_machines else "several" if plan.settings.several_engines else "port")
    if plan.settings.published:
        names.append("domain")
    names.append("cpu" if plan.engine.cpu else "nvidia")
    return [f"{name}.yaml" for name in names]


def merge(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge as Compose merges several -f files: mappings by key, lists are concatenated, the later value wins."""
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            known = merged.get(key)
            if isinstance(known, dict) and isinstance(value, Mapping):
                merged[key] = merge([known, value])
            elif isinstance(known, list) and isinstance(value, list):
                merged[key] = known + value
            else:
                merged[key] = value
    return merged


def _owner(deployment: Deployment) -> str:
    """Return `uid:gid` of `.env`, also if it is not written yet: only its owner can read the mounted file."""
    try:
        status = deployment.env_file.stat()
    except FileNotFoundError:
        directory = deployment.directory.stat()
        # a new file belongs to the group of such a directory
        group = directory.st_gid if directory.st_mode & stat.S_ISGID else os.getegid()
        return f"{os.geteuid()}:{group}"
    return f"{status.st_uid}:{status.st_gid}"


def _secrets_hash(deployment: Deployment) -> str:
    """Return a fingerprint of the secrets that a start needs: a running gateway reads the further keys again."""
    return _salted(deployment, *(value for _, value in deployment.secrets_of_a_start))


def _salted(deployment: Deployment, *secrets: str) -> str:
    """Return a fingerprint of secrets. Others can read it, and without the salt they could try keys with it."""
    text = "\n".join(secrets)
    return hmac.digest(_salt(deployment).encode(), text.encode(), "sha256").hex()[:12]


def _salt(deployment: Deployment) -> str:
    return (read_state_text(deployment.state / SALT) or "").strip()
