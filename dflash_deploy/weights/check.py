"""Checks weights on disk: fast, for missing files, or against the lock, by digest and known kinds of damage.

The fast check of a model directory finds a missing file before the engine does minutes later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from dflash_deploy.errors import FileDenied, FileInvalid, FileRefused, WeightsMissing
from dflash_deploy.intake.documents import ShardIndex, parse_document
from dflash_deploy.intake.files import MIB, open_file, read_bytes, reading
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.gguf import MAGIC, HeaderEnds, Layout, NotGguf, read_layout
from dflash_deploy.weights.lock import LockedFile, LockedModel, is_needed, is_within

INDEX = "model.safetensors.index.json"
# First bytes of a Git LFS pointer: a few lines in place of the weights, after a clone without Git LFS.
POINTER = b"version https://git-lfs"

# Bytes of config.json and of the index. A model with 100,000 tensors has an index of 10 MiB.
LARGEST_CONFIG, LARGEST_INDEX = 16 * MIB, 64 * MIB

MOST_VALUES = 4_000_000  # values of a safetensors header: ten for each tensor
MOST_HEADER = 100 * 2**20  # the longest header that the safetensors library reads

MOST_SEARCHED, SHOWN_FILES = 1000, 3  # GGUF files that are listed if one is missing, and those that are named
# The setting of each role's GGUF.
_FILES = {"target": Settings.model_file, "vision projector": Settings.mmproj_file, "drafter": Settings.drafter_file}

# The name of one of several files of a model, numbered from 1.
_PART = re.compile(r"(.*-)\d{5}-of-(0\d{4})(\.\w+)", re.ASCII)


def check_weights(directory: Path, *, role: str, remedy: str, mounted: bool = False, file: str = "") -> None:
    """Check config.json and every weight file, or the one GGUF that `file` names.

    `role` (target or drafter) is for the message, `remedy` is the hint if it is missing or not complete.
    `mounted`: a container mounts this directory and sees nothing outside it.
    Raises WeightsMissing.
    """
    try:
        if not directory.is_dir():
            lack = _absence(directory) if directory.is_symlink() else "does not exist"
            raise WeightsMissing(f"the {role}'s directory {directory} {lack}", hint=remedy)
        problems = _gguf_problems(directory, file, mounted=mounted) if file else _problems(directory, mounted=mounted)
        problem = next(problems, None)
    except (PermissionError, FileDenied) as denied:
        place = denied.filename if isinstance(denied, PermissionError) else denied.message
        raise WeightsMissing(
            f"the {role} cannot be read by this user: {place}", hint=f"run `chmod -R a+rX {directory}`"
        ) from None
    except FileRefused as refused:
        raise WeightsMissing(f"the {role} cannot be read: {refused.message}", hint=refused.hint) from None
    except OSError as problem:
        raise WeightsMissing(
            f"the {role} cannot be read: {problem.filename or directory}: {problem.strerror}",
            hint="check its disk or network share (`dmesg | tail`)",
        ) from None
    if problem is None:
        return
    if file and not (directory / file).exists() and (there := _ggufs_below(directory, PurePosixPath(file).name)):
        problem = f"{problem}; the directory has {', '.join(there)}"
        remedy = f"`dflash-deploy set {_FILES[role]}={there[0]}`, or {remedy}"
    raise WeightsMissing(f"the {role} in {directory} is incomplete: {problem}", hint=remedy)


def _ggufs_below(directory: Path, name: str) -> list[str]:
    """Return the first GGUF files in a directory and its subfolders, where repositories of the Hub have them.

    Those of the same name come first. Projectors and drafters are left out if one is not searched for.
    """
    found = islice((file for depth in ("*", "*/*", "*/*/*") for file in directory.glob(f"{depth}.gguf")), MOST_SEARCHED)
    alike = [file for file in found if file.is_file() and _kind(file.name) == _kind(name)]
    names = sorted((file.name != name, str(file.relative_to(directory))) for file in alike)
    return [path for _, path in names[:SHOWN_FILES]]


def _kind(name: str) -> str:
    """What the name of a GGUF says that it is: a projector, a drafter, or neither."""
    lower = name.lower()
    return "projector" if "mmproj" in lower else "drafter" if "draft" in lower or "dflash" in lower else ""


def _problems(directory: Path, *, mounted: bool) -> Iterator[str]:
    config = directory / "config.json"
    for file in sorted(directory.iterdir()):
        if not file.exists() and is_needed(PurePosixPath(file.name), "drafter"):
            yield f"{file.name} {_absence(file)}"
    if not config.is_file():
        yield f"config.json {_absence(config)}"
    elif not _is_json(config):
        yield "config.json is damaged"
    try:
        names = weight_files(directory)
    except Invalid:
        yield f"{INDEX} is damaged"
        return
    if not names:
        yield "no *.safetensors file found"
    for name in names:
        yield from _file_problems(directory, name, mounted=mounted)


def _gguf_problems(directory: Path, name: str, *, mounted: bool, place: int = 0) -> Iterator[str]:
    """Compare part `place` of a GGUF, from 0, with its header, and after part 0 the others: an engine does so too late.

    Only the first problem is meant to be read: what is missing cannot be opened.
    """
    file = directory / name
    yield from _file_problems(directory, name, mounted=mounted)
    with open_file(file) as content:
        is_gguf = content.read(len(MAGIC)) == MAGIC
    if not is_gguf:
        yield f"{name} is not a GGUF file"
    try:
        layout = read_layout(file)
    except HeaderEnds:
        yield f"{name} is truncated in its header"
    except NotGguf as problem:
        yield f"{name} has a damaged header: {problem}"
    else:
        yield from _layout_problems(name, layout, file.stat().st_size, place)
        others = parts_of(name)[1:] if layout.parts > 1 and place == 0 else ()
        for number, part in enumerate(others, 1):
            yield from _gguf_problems(directory, part, mounted=mounted, place=number)


def _layout_problems(name: str, layout: Layout, size: int, place: int) -> Iterator[str]:
    if size < layout.size:
        yield f"{name} is truncated: {size} of {layout.size} bytes"
    if layout.rows is not None and layout.tokens > layout.rows:
        yield f"{name} has {layout.tokens} tokens, but its embedding has {layout.rows} rows"
    if layout.part != place:
        yield f"{name} is part {layout.part + 1} of {layout.parts}, in place of part {place + 1}"
    if layout.parts > 1 and len(parts_of(name)) != layout.parts:
        yield f"{name} is one of {layout.parts} parts, which must be named *-00001-of-{layout.parts:05}.gguf and so on"


def _file_problems(directory: Path, name: str, *, mounted: bool) -> Iterator[str]:
    file = directory / name
    if not file.exists():
        yield f"{name} {_absence(file)}"
    elif file.stat().st_size == 0:
        yield f"{name} is empty"
    elif problem := content_problem(file):
        yield f"{name} {problem}"
    elif mounted and directory.resolve() not in file.resolve().parents:
        yield f"{name} is a symlink to a file outside the directory, which a container does not see"


def _absence(file: Path) -> str:
    return f"is a broken symlink to {file.readlink()}" if file.is_symlink() else "is missing"


def parts_of(name: str) -> list[str]:
    """Return the names of all files of a model in several, of which `name` is one; only `name` for another model."""
    part = _PART.fullmatch(name)
    return [f"{part[1]}{n:05}-of-{part[2]}{part[3]}" for n in range(1, int(part[2]) + 1)] if part else [name]


def content_problem(file: Path) -> str:
    """Return what is wrong with a file by its first bytes, as text after its name; empty if nothing is."""
    return _foreign(file) or (_safetensors_problem(file) if file.suffix == ".safetensors" else "")


def _foreign(path: Path) -> str:
    """Return what was saved in place of the weights; empty if nothing was."""
    with open_file(path) as content:
        start = content.read(256)
    if start.startswith(POINTER):
        return "is a Git LFS pointer, not the weights"
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")) and path.suffix != ".html":
        return "is an HTML page, not the weights"
    return ""


def tensor_names(directory: Path) -> set[str]:
    """Return the names of all tensors, from the index or the headers of the safetensors files.

    Raises FileRefused, OSError, EOFError or Invalid if these cannot be read.
    """
    index = directory / INDEX
    if index.is_file():
        return set(_weight_map(index))
    headers = (_header(file)[1] for file in directory.glob("*.safetensors"))
    return {name for header in headers for name in header if name != "__metadata__"}


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the size in bytes of a safetensors header, and the header. Raises EOFError if the file is too short."""
    with open_file(path) as content:
        length = int.from_bytes(content.read(8), "little")
        if length > min(path.stat().st_size, MOST_HEADER):
            raise EOFError(path.name)
        return length, parse_object(content.read(length), limit=MOST_HEADER, values=MOST_VALUES)


def _safetensors_problem(path: Path) -> str:
    """Compare the size of a safetensors file with the size in its header."""
    size = path.stat().st_size
    try:
        length, header = _header(path)
        ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
    except EOFError:
        return "is not a safetensors file, or is truncated in its header"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return "has a damaged header"
    needed = 8 + length + max(ends, default=0)
    return f"is truncated: {size} of {needed} bytes" if size < needed else ""


def _is_json(file: Path) -> bool:
    try:
        parse_object(read_bytes(file, limit=LARGEST_CONFIG))
    except (FileInvalid, Invalid):
        return False
    return True


def weight_files(directory: Path) -> list[str]:
    """Return the files that the index names; without an index all safetensors files, and the parts between them."""
    index = directory / INDEX
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        if not all(map(is_within, names)):
            raise Invalid("names a file outside its directory")
        return names
    return sorted({part for file in directory.glob("*.safetensors") for part in parts_of(file.name)})


def _weight_map(index: Path) -> dict[str, str]:
    return parse_document(read_bytes(index, limit=LARGEST_INDEX), ShardIndex, limit=LARGEST_INDEX).weight_map


BLOCK = 8 * 2**20


def digest_of(path: Path, file: LockedFile) -> str:
    """Return the file's digest of the kind in the lock: sha256, or git's object id."""
    if file.sha256:
        digest = hashlib.sha256()
    else:
        # git's object id: "blob", the length, a zero byte, the content
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with open_file(path) as content, reading(path):
        block = bytearray(BLOCK)
        view = memoryview(block)
        while count := content.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def is_right(path: Path, file: LockedFile) -> bool:
    """Return whether size and digest match the lock; only the size if the lock has no digest."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    expected = file.sha256 or file.blob
    return expected is None or digest_of(path, file) == expected


def problem_of(path: Path, file: LockedFile) -> str:
    """Return what is wrong with a file, as text after its name; empty if nothing is."""
    if not path.is_file():
        return "is not a file" if path.exists() else "is missing"
    if (file.sha256 or file.blob) and is_right(path, file):
        return ""
    size = path.stat().st_size
    if size == 0 and file.size:
        return "is empty"
    if found := content_problem(path):
        return found
    if size != file.size:
        return f"has {size} bytes instead of {file.size}"
    return "has another checksum than in dflash.lock" if file.sha256 or file.blob else ""


def verify(directory: Path, model: LockedModel, *, workers: int = 2) -> Iterator[tuple[LockedFile, str]]:
    """Yield each file and what is wrong with it; hashing runs in `workers` threads."""
    with ThreadPoolExecutor(workers) as pool:
        largest_first = sorted(model.files, key=lambda file: -file.size)
        yield from zip(
            largest_first, pool.map(lambda file: problem_of(directory / file.path, file), largest_first), strict=True
        )
