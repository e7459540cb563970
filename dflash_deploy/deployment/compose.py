"""`compose.yaml` and the images' build context, from the fragments in compose/ and a plan.

The services are the engine, and under a domain the door. The build context in `.dflash/build/` has the files that the
Dockerfiles of the images copy.
"""

from __future__ import annotations

import filecmp
import hmac
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.assets import asset_text, build_context, build_digest
from dflash_deploy.catalog.settings import passed_on
from dflash_deploy.deployment.directory import GENERATED, Deployment
from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.deployment.files import (
    PRIVATE,
    PUBLIC,
    write_atomically,
    write_if_changed,
)
from dflash_deploy.deployment.front import DOOR, SERVICE, make_owned, storage_of
from dflash_deploy.deployment.keys import remove_keys, write_keys
from dflash_deploy.deployment.upgrading import planned_settings, remember_planned
from dflash_deploy.door import Site, published_site
from dflash_deploy.intake.documents import read_state_text
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.result import Plan
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.serve.settings import Settings

# A variable as the fragments of compose/ have them.
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?:-(?P<default>[^}]*)|\?[^}]*))?\}")


def with_door(document: dict[str, Any], site: Site) -> None:
    """Give the door its image, the user of the engine, and its host."""
    door, engine = document["services"][DOOR], document["services"][SERVICE]
    door["build"]["context"] = engine["build"]["context"]
    door["image"] = f"dflash-deploy/door:{__version__}-{build_digest(DOOR)}"
    door["user"] = engine["user"]
    door["labels"] = {"dev.dflash.version": __version__}
    door["environment"] |= site.variables


# The directory's name in `.dflash/`. `build.PID` is one that is not complete yet, or not needed any more.
NAME = "build"


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


# The file in `.dflash/`, readable only by its owner, with a random text for the label of the secrets.
SALT = "label-salt"

BUILD_CONTEXT = "./.dflash/build"

HEADER = f"""\
{GENERATED} {{version}} from .env; `up` overwrites it: put additions into compose.override.yaml.
# Profile {{profile}}, pair {{pair}}, engine {{engine}}. `docker compose up -d` works here without dflash-deploy.
"""


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


def render(deployment: Deployment, plan: Plan) -> bool:
    """Write `compose.yaml` and the build context; return whether `compose.yaml` changed."""
    state, published = deployment.make_state(), plan.settings.published
    if published and plan.runtime == "compose":
        make_owned(deployment, storage_of(deployment))
    write_keys(deployment)
    stage_build_context(state, (plan.engine.engine, *((DOOR,) if published else ())))
    if not _salt(deployment):
        write_atomically(state / SALT, generate_key().reveal(), mode=PRIVATE)
    changed = write_if_changed(deployment.compose_file, compose_text(deployment, plan), mode=PUBLIC)
    deployment.keep_project_name()
    return changed


def compose_text(deployment: Deployment, plan: Plan) -> str:
    """Return the merged Compose file. Settings stay variables; it contains no secrets."""
    document = _filled(_with_variables(deployment, plan), deployment, plan)
    header = HEADER.format(version=__version__, profile=plan.profile.name, pair=plan.pair.name, engine=plan.engine.name)
    return header + yaml.safe_dump(document, sort_keys=False, width=120)


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
    if (site := published_site(plan.settings)) is not None:
        with_door(document, site)
    return document


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
    names.append("nodes" if plan.settings.several_machines else "port")
    if plan.settings.published:
        names.append("door")
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
    """Return a fingerprint of the secrets that a start needs: a running gateway reads the further keys again.

    Others can read it, and without the salt they could try keys with it.
    """
    text = "\n".join(value for _, value in deployment.secrets_of_a_start)
    return hmac.digest(_salt(deployment).encode(), text.encode(), "sha256").hex()[:12]


def _salt(deployment: Deployment) -> str:
    return (read_state_text(deployment.state / SALT) or "").strip()
