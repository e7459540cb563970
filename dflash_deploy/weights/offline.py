"""Copy weights and dflash.lock to a machine without a network: `pull --to DIR` and `pull --from DIR`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dflash_deploy.deployment.files import copy_durably
from dflash_deploy.errors import FilesMissing
from dflash_deploy.weights.fetch import missing_files, reuse_file
from dflash_deploy.weights.lockfile import LOCK_FILE, Lock, read_lock, write_lock
from dflash_deploy.weights.pull import RequestedModel, require_all
from dflash_deploy.weights.staging import named_write_errors


def export_weights(
    wanted: tuple[RequestedModel, ...], lock: Lock | None, place: Path, count: Callable[[int], None]
) -> None:
    """Copy a deployment's weights and its lock to `place`. Raises FilesMissing if any file is missing."""
    require_all(wanted, lock)
    assert lock is not None  # noqa: S101 - require_all refuses None
    with named_write_errors(place):
        for requested in wanted:
            model = lock.models[requested.role]
            for file in model.files:
                count(file.size)
                if not missing_files(place / requested.role, model.only({file.path})):
                    continue
                target = place / requested.role / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                staged = target.with_name(f".{target.name}.part")
                copy_durably(requested.directory / file.path, staged, target)
        # last: a lock means that the directory is complete
        write_lock(place / LOCK_FILE, lock)


def import_weights(wanted: Iterable[RequestedModel], place: Path, count: Callable[[int], None]) -> Lock:
    """Copy or link the weights that `export_weights` wrote to `place` and verify them. Raises FilesMissing."""
    lock = read_lock(place / LOCK_FILE)
    if lock is None:
        raise FilesMissing(
            f"{place} has no {LOCK_FILE}: it is empty or incomplete",
            hint="fill it with `dflash-deploy pull --to DIR` on a machine with a network",
        )
    for requested in wanted:
        model = lock.models.get(requested.role)
        if model is None or model.repo.lower() != requested.repo.lower():
            found = model.repo if model else "nothing"
            raise FilesMissing(
                f"{place} has {found} as the {requested.role}, this deployment needs {requested.repo}",
                hint="fill it from a deployment of the same model",
            )
        for file in model.files:
            if missing_files(requested.directory, model.only({file.path})) and not reuse_file(
                place / requested.role / file.path, file, requested.directory
            ):
                raise FilesMissing(
                    f"{place / requested.role / file.path} is missing or differs from {LOCK_FILE}",
                    hint="fill it again with `dflash-deploy pull --to DIR`",
                )
            count(file.size)
    return lock
