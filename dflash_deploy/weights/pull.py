"""The models of a deployment on the Hugging Face Hub: their files and commits, and whether they are on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog.models import Weights
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import FilesMissing, RepositoryMissing
from dflash_deploy.plan.command import drafter_directory, is_directory
from dflash_deploy.plan.result import Plan
from dflash_deploy.weights.check import verify
from dflash_deploy.weights.fetch import missing_files
from dflash_deploy.weights.hub import Source, resolve
from dflash_deploy.weights.lock import Lock, LockedModel, Role, needed


@dataclass(frozen=True)
class RequestedModel:
    """A model to download: role, repository, revision and directory. `names`: for a GGUF, the only files."""

    role: Role
    repo: str
    revision: str | None
    directory: Path
    names: tuple[str, ...]


def requested_models(deployment: Deployment, plan: Plan) -> tuple[RequestedModel, ...]:
    """Return target and drafter of a deployment if they come from the Hugging Face Hub."""
    settings = plan.settings
    target = (settings.model_file, settings.mmproj_file)
    found = [_requested("target", plan.pair.target, None, deployment.path(settings.model_host_path), target)]
    if plan.drafting:
        named = settings.dflash_drafter
        own = None if is_directory(named) else named
        place = deployment.path(drafter_directory(settings))
        found.append(_requested("drafter", plan.pair.drafter, own, place, (settings.drafter_file,)))
    return tuple(requested for requested in found if requested is not None)


def _requested(
    role: Role, weights: Weights, named: str | None, place: Path, names: tuple[str, ...]
) -> RequestedModel | None:
    """Return the model of the repository in `.env`, else of the catalog's at its pinned revision.

    `None` for weights inside the package, and for those without a repository.
    """
    repo = named or weights.repo
    if weights.bundled is not None or repo is None:
        return None
    revision = weights.revision if repo == weights.repo else None
    return RequestedModel(role, repo, revision, place, tuple(name for name in names if name))


def lock_for(wanted: Iterable[RequestedModel], before: Lock | None, source: Source, *, update: bool = False) -> Lock:
    """Return the lock of these models: the locked commits if they still apply, else the current ones of the Hub."""
    models: dict[Role, LockedModel] = {}
    for requested in wanted:
        known = before.models.get(requested.role) if before is not None else None
        models[requested.role] = (
            known if known is not None and not update and _serves(known, requested) else _resolved(requested, source)
        )
    return Lock(models)


def _serves(known: LockedModel, requested: RequestedModel) -> bool:
    pinned = requested.revision is None or known.commit.startswith(requested.revision)
    files = {file.path for file in known.files}
    return known.repo.lower() == requested.repo.lower() and pinned and set(requested.names) <= files


def _resolved(requested: RequestedModel, source: Source) -> LockedModel:
    there = resolve(source, requested.repo, requested.revision)
    files = needed(there.files, requested.role, requested.names)
    lacking = set(requested.names) - {file.path for file in files}
    if lacking or not files:
        what = ", ".join(sorted(lacking)) or "files that an engine can load"
        raise RepositoryMissing(
            f"{requested.repo} at {there.commit[:10]} does not have {what}",
            hint=f"see {source.shown}/{requested.repo}/tree/{there.commit}",
        )
    return LockedModel(there.repo, there.commit, files)


def require_all(wanted: Iterable[RequestedModel], lock: Lock | None) -> None:
    """Raise FilesMissing with the names of files that are in the lock and not on disk."""
    if lock is None:
        raise FilesMissing("dflash.lock does not exist yet", hint="run `dflash-deploy pull` once with a network")
    for requested in wanted:
        if requested.role not in lock.models:
            raise FilesMissing(f"dflash.lock has no {requested.role}", hint="run `dflash-deploy pull` with a network")
        absent = missing_files(requested.directory, lock.models[requested.role])
        if absent:
            names = ", ".join(file.path for file in absent[:5]) + (" …" if len(absent) > 5 else "")
            raise FilesMissing(
                f"{len(absent)} of {len(lock.models[requested.role].files)} files of {requested.repo} are not in "
                f"{requested.directory}: {names}",
                hint="run `dflash-deploy pull` with a network",
            )


def network_is_refused() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads, with the values that huggingface_hub takes as true."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def wrong_files(wanted: Iterable[RequestedModel], lock: Lock) -> dict[str, str]:
    """Return every file that differs from the lock, by its path on this machine, and what is wrong with it."""
    return {
        str(requested.directory / file.path): problem
        for requested in wanted
        if requested.role in lock.models
        for file, problem in verify(requested.directory, lock.models[requested.role])
        if problem
    }


def newer_commits(wanted: Iterable[RequestedModel], lock: Lock, source: Source) -> Mapping[str, tuple[str, ...]]:
    """Return repositories whose newest commit is not the locked one, each with the files that differ."""
    found: dict[str, tuple[str, ...]] = {}
    for requested in wanted:
        known = lock.models.get(requested.role)
        if known is None or requested.revision is not None:
            # a pinned revision cannot move
            continue
        now = _resolved(requested, source)
        if now.commit != known.commit:
            old, new = ({file.path: file for file in files} for files in (known.files, now.files))
            found[known.repo] = tuple(sorted(path for path in {*old, *new} if old.get(path) != new.get(path)))
    return found
