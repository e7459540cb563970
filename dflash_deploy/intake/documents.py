"""The program's own JSON documents, and state files of a deployment that heal.

Documents are read strictly: a power cut or an editor may have damaged them. A damaged state file is renamed, reported,
and treated as missing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError

from dflash_deploy.errors import FileInvalid, FileMissing
from dflash_deploy.intake.files import MIB, read_bytes, shown
from dflash_deploy.intake.parse import Invalid, place_of

T = TypeVar("T", bound=BaseModel)

Size = Annotated[int, Field(ge=0, lt=2**63)]  # bytes
Name = Annotated[str, Field(max_length=4096)]  # A path, a digest, an address, a repository


Seconds = Annotated[float, Field(ge=0, lt=1e9)]


class Document(BaseModel):
    """A document of this program. Unknown keys are ignored: a newer release may have written them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class RunState(Document):
    """`.dflash/run.json`: the supervisor that was started last. `started` is in clock ticks since boot.

    `place` is the directory of the file, by its inode: a copy of the file is of no other directory. An older release
    does not write it.
    """

    pid: Annotated[int, Field(ge=1, lt=2**31)]
    started: Size
    config: Name
    address: Name
    place: str = ""


class ProjectState(Document):
    """`.dflash/project.json`: the name of the Compose project, and the directory of the file, as in `RunState`."""

    name: Name
    place: str


class EngineEnd(Document):
    """`.dflash/exit.json`: how the engine ended. A negative `exit_code` is the signal that ended it.

    `asked` says whether it was asked to stop, since an engine whose core died may exit with 0 too. An older release
    does not write it.
    """

    exit_code: Annotated[int, Field(ge=-255, le=255)]
    asked: bool = True


def _checked_time(at: str) -> str:
    datetime.fromisoformat(at)
    return at


class JournalEvent(Document):
    """A line of `.dflash/journal.jsonl`: what happened, when (UTC), and the command that did it; empty if none did."""

    at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"), AfterValidator(_checked_time)]
    event: Annotated[str, Field(max_length=40)]
    command: Annotated[str, Field(max_length=40)]
    text: Annotated[str, Field(max_length=4096)]


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # A SHA-256 in hexadecimal digits


class LastStart(RootModel[Annotated[dict[Name, Seconds], Field(max_length=100)]]):
    """`.dflash/last-start.json`: seconds of each phase of the last successful start."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


Value = Annotated[str, Field(max_length=32 * 1024)]  # the value of a setting: no longer than a line of `.env`


class PlannedSettings(Document):
    """`.dflash/planned.json`: the settings that the program chose for `.env`, without those that the user chose.

    `program` is the version that wrote it, `recipe` the recipe that was asked for, `release` and `family` the catalog's
    entries of the engine release and the model: a later program or catalog may not have them. While `upgrade` tries
    settings, `before` is what it goes back to.
    """

    program: Name
    recipe: Name = ""
    release: dict[str, Any] = {}
    family: dict[str, Any] = {}
    values: Annotated[dict[Name, Value], Field(max_length=1000)]
    before: SettingsBefore | None = None


class SettingsBefore(PlannedSettings):
    """The settings that the program chose before an upgrade, with what the upgrade changes.

    `changes` has the new value of each setting, `lock` the text of dflash.lock before.
    """

    changes: Annotated[dict[Name, Value], Field(max_length=1000)]
    lock: Annotated[str, Field(max_length=MIB)] = ""


Milliseconds = Annotated[float, Field(ge=0, lt=1e12)]

Tokens = Annotated[int, Field(ge=0, lt=2**53)]


class BenchTimes(Document):
    """A distribution of times in the figures of `bench`, of which the mean is read."""

    mean: Milliseconds


class BenchRow(Document):
    """One workload at one concurrency, in the figures of `bench`."""

    workload: Annotated[str, Field(max_length=200)]
    concurrency: Annotated[int, Field(ge=1, lt=2**31)]
    drafter: bool | None
    mtp: bool
    duration_s: Annotated[float, Field(gt=0, lt=1e9)]
    output_tokens: Tokens
    tpot_ms: BenchTimes | None


class BenchConditions(Document):
    """When `bench` measured."""

    at: Annotated[str, Field(max_length=40)]


class BenchRun(Document):
    """The figures of a run of `bench` that other commands read."""

    measured: BenchConditions
    rows: Annotated[list[BenchRow], Field(max_length=10_000)]


class BenchFigures(Document):
    """What `bench --save` and `bench --json` write, and `.dflash/bench.json`: the figures of the last run."""

    command: Literal["bench"]
    data: BenchRun


class EngineAnswer(Document):
    """What an engine says of its configuration: `dflash_deploy.serve.answer` writes it.

    `decided` is what it chose, by name. `refused` is its own sentence, `unaskable` why it cannot be asked; both are
    empty if it accepts.
    """

    decided: Annotated[dict[Name, Name], Field(max_length=100)] = {}
    refused: Name = ""
    unaskable: Name = ""


class FileEntry(Document):
    """One file in `dflash.lock`."""

    path: Name
    size: Size
    sha256: Name | None = None
    blob: Name | None = None


class LockEntry(Document):
    """One repository in `dflash.lock`."""

    repo: Name
    commit: Name
    files: Annotated[list[FileEntry], Field(max_length=100_000)]


class LockedModels(Document):
    """The repositories in `dflash.lock`, by role."""

    target: LockEntry | None = None
    drafter: LockEntry | None = None


class LockDocument(Document):
    """`dflash.lock`."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    models: LockedModels


class PartRecord(Document):
    """`.pull/NAME.json`: the file whose first bytes are in `.pull/NAME.part`."""

    size: Size
    identity: Name
    etag: Name


Stamp = tuple[int, int, Name | None]  # size in bytes, time of the last change in nanoseconds, and digest of a file


class VerifiedStamps(RootModel[dict[Name, Stamp]]):
    """`.dflash-verified.json` beside weights: files that had the right digest, by their path."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


class ShardIndex(Document):
    """`model.safetensors.index.json` of a model: the file of each tensor."""

    weight_map: dict[Name, Name]


def parse_document(text: bytes | str, kind: type[T], *, limit: int = MIB) -> T:
    """Return the document in a JSON text. Raises Invalid with the first key that does not match."""
    size = len(text)
    if size > limit:
        raise Invalid(f"is too large: {size} bytes (limit: {limit})")
    try:
        return kind.model_validate_json(text)
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_input=False)[0]
        place = place_of(error["loc"])
        raise Invalid(f"is damaged: {place}: {error['msg']}" if place else f"is damaged: {error['msg']}") from None


V = TypeVar("V")

Report = Callable[[str], None]  # takes one line about a damaged file
DAMAGED = ".damaged"  # suffix of a damaged file that was set aside

# Reports to the package's log, which Python writes to standard error unless a program configures it.
log_damage: Report = logging.getLogger("dflash_deploy").warning


def read_state(path: Path, kind: type[T], *, report: Report = log_damage, limit: int = MIB) -> T | None:
    """Return the document in a state file; `None` if the file is missing or damaged.

    A damaged file is renamed to NAME.damaged and reported; so is a directory, a FIFO or a symbolic link in its place.
    Raises FileRefused if the user may not read it.
    """
    return _read(path, lambda content: parse_document(content, kind, limit=limit), report, limit)


def read_state_text(path: Path, *, report: Report = log_damage, limit: int = MIB) -> str | None:
    """Return the text of a state file, as `read_state` does for a document; text with a NUL byte is damaged."""
    return _read(path, _text, report, limit)


def _read(path: Path, parse: Callable[[bytes], V], report: Report, limit: int) -> V | None:
    try:
        return parse(read_bytes(path, limit=limit, links=False))
    except FileMissing:
        return None
    except FileInvalid as problem:
        set_aside(path, problem.message, report=report)
    except Invalid as problem:
        set_aside(path, f"{shown(path)} {problem}", report=report)
    return None


def _text(content: bytes) -> str:
    if b"\0" in content:
        raise Invalid("is damaged: it has a NUL byte")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise Invalid(f"is not UTF-8 text (byte {problem.start})") from None


def set_aside(path: Path, problem: str, *, report: Report = log_damage) -> None:
    """Rename a damaged file to NAME.damaged and report the `problem`. A file that cannot be renamed stays."""
    aside = path.with_name(f"{path.name}{DAMAGED}")
    with contextlib.suppress(OSError):
        path.replace(aside)
        report(f"{problem}; moved to {aside.name}")
        return
    report(f"{problem}; ignored")


def remove_state(path: Path, *, report: Report = log_damage) -> None:
    """Remove a state file that may be missing. What cannot be removed, such as a directory, is set aside."""
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        set_aside(path, f"{shown(path)} cannot be removed: {problem.strerror}", report=report)
