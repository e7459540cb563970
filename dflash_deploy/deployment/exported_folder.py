"""A folder of generated files that a person keeps: written again only where it is as it was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from dflash_deploy.deployment.files import PUBLIC, remove_leftovers, write_atomically
from dflash_deploy.deployment.outputs import STATE, not_written
from dflash_deploy.errors import BadInput, FileMissing, FileRefused
from dflash_deploy.intake import MIB, Invalid, read_bytes, read_text
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.intake.export_documents import ExportRecord
from dflash_deploy.intake.files import shown

R = TypeVar("R", bound=ExportRecord)

RECORD = ".dflash-export.json"
"""The file with the digests of what was written, so that edited files and those of others are known."""

Options = Mapping[str, str | int]
"""The options of an export, by name."""

NO_FILES: Mapping[str, list[str]] = {}

ADDITIONS = {
    "kubernetes": "an overlay",
    "compose": "compose.override.yaml",
    "production-stack": "a values file of your own",
}
"""The forms of an export, and where a person's changes to it belong."""


@dataclass(frozen=True)
class Origin:
    """Where a folder comes from: a deployment, and the form of the export."""

    deployment: str
    form: str = "kubernetes"


def write_folder(out: Path, origin: Origin, texts: Mapping[str, str], options: Options) -> None:
    """Write a folder's files, and remove those of its last export that it no longer has.

    `options` are those of the export. Raises BadInput, and writes nothing, if the folder has the export of another
    deployment or by another command, has files of a person instead of an export, or if one of its files was edited;
    PreflightRefused if the disk is full.
    """
    # of an export that was killed: without a record, its temporary file would be taken for a person's
    remove_leftovers(out, RECORD)
    record = read_record(out, origin, ExportRecord)
    before = record.files if record else NO_FILES
    present = {name: _digest_at(out / name) for name in {*texts, *before}}
    for name, text in texts.items():
        digest = present[name]
        if digest is not None and digest not in (*before.get(name, ()), _digest(text.encode())):
            raise BadInput(
                f"{shown(out / name)} was edited, or written by someone else",
                hint=f"move your changes to {ADDITIONS[origin.form]} and remove the file, or choose another directory "
                "with --out",
            )
    after = {name: [_digest(text.encode())] for name, text in texts.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        # first with the digests of both exports: a command that is killed is repeated, and finds its own files
        _record(
            out, origin, options, {name: [*before.get(name, ()), *after.get(name, ())] for name in {*before, *after}}
        )
        for name, text in texts.items():
            place = out / name
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(place.parent, place.name)
            write_atomically(place, text, mode=PUBLIC)
        for name in before.keys() - texts.keys():
            # an edited one is a person's now
            if present[name] in before[name]:
                (out / name).unlink()
        _record(out, origin, options, after)
    except OSError as problem:
        raise not_written(out, problem) from None


def read_folder(out: Path, record: ExportRecord) -> dict[str, str]:
    """The texts of the files of the last export that still exist.

    Raises FileRefused for one that is not a regular file, is too large or is not text.
    """
    texts = {}
    for name in record.files:
        with suppress(FileMissing):
            texts[name] = read_text(out / name, limit=MIB)
    return texts


def read_record(out: Path, origin: Origin, kind: type[R]) -> R | None:
    """What the last export into the folder wrote; `None` for a new or an empty folder.

    Raises BadInput if the folder is a deployment's, has the export of another deployment or command, or files
    and no export.
    """
    if STATE in out.absolute().parts:
        raise BadInput(f"{shown(out)} is a directory of a deployment", hint="choose another directory with --out")
    try:
        text = read_bytes(out / RECORD, limit=MIB)
        _check_origin(out, parse_document(text, ExportRecord, limit=MIB), origin)
        return parse_document(text, kind, limit=MIB)
    except FileMissing:
        if _has_files(out):
            raise BadInput(
                f"{shown(out)} has files that this command did not write",
                hint="choose a new or an empty directory with --out",
            ) from None
        return None
    except Invalid as problem:
        raise BadInput(
            f"{shown(out / RECORD)} {problem}", hint="choose a new directory with --out: this one may have edited files"
        ) from None


def _check_origin(out: Path, record: ExportRecord, origin: Origin) -> None:
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in record.files):
        raise BadInput(
            f"{shown(out / RECORD)} names files outside of its folder", hint="choose a new directory with --out"
        )
    if record.form != origin.form:
        raise BadInput(f"{shown(out)} has an export for {record.form}", hint="choose another directory with --out")
    if record.deployment != origin.deployment:
        raise BadInput(
            f"{shown(out)} has the export of another deployment: {shown(Path(record.deployment))}",
            hint="choose another directory with --out",
        )


def _has_files(out: Path) -> bool:
    try:
        return any(out.iterdir())
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise not_written(out, problem) from None


def _digest_at(path: Path) -> str | None:
    """The digest of a file; `None` if it is missing, empty if it is not a file of this kind."""
    try:
        return _digest(read_bytes(path, limit=MIB))
    except FileMissing:
        # a link to a missing file is something that a person made
        return "" if path.is_symlink() else None
    except FileRefused:
        return ""


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _record(out: Path, origin: Origin, options: Options, files: Mapping[str, list[str]]) -> None:
    document = {"schema": 1, **asdict(origin), "options": dict(options), "files": dict(sorted(files.items()))}
    write_atomically(out / RECORD, json.dumps(document, indent=2) + "\n", mode=PUBLIC)
