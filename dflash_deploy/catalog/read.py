"""Reads and validates one catalog file; errors name the file and the key.

All catalog files share these building blocks: entries that reject unknown keys, values with reasons, and evidence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dflash_deploy.errors import BadInput, CatalogRefused, FileRefused
from dflash_deploy.intake.files import read_text, shown
from dflash_deploy.intake.parse import LONGEST_KEY, Invalid, parse_packaged_yaml, parse_yaml, place_of

EXAMPLE = "docs/reference/catalog has an annotated example of each kind of file"

T = TypeVar("T", bound=BaseModel)
F = TypeVar("F", bound=Traversable)


def packaged_files(folder: Traversable) -> list[Traversable]:
    """The YAML files of a folder of the packaged catalog, sorted by name."""
    return _sorted(folder.iterdir())


def own_files(folder: Path) -> list[Path]:
    """The YAML files of a folder of a custom catalog, sorted by name. Raises CatalogRefused if it cannot be read."""
    try:
        return _sorted(folder.iterdir())
    except OSError as problem:
        hint = "check its permissions with `ls -ld`"
        raise CatalogRefused(f"{shown(folder)} cannot be read: {problem.strerror}", hint=hint) from None


def _sorted(files: Iterable[F]) -> list[F]:
    return sorted(
        (file for file in files if file.name.endswith((".yaml", ".yml"))), key=lambda file: file.name.rpartition(".")[0]
    )


def read_packaged(file: Traversable, kind: type[T]) -> T:
    """An entry of the packaged catalog. Raises pydantic.ValidationError: a broken installation."""
    return kind.model_validate(_packaged(file))


def _packaged(file: Traversable) -> Any:
    return parse_packaged_yaml(file.read_text(encoding="utf-8"))


def read_entry(file: Path, kind: type[T]) -> T:
    """An entry of a custom catalog.

    Raises CatalogRefused with the key and, if the key is unknown, the closest valid one.
    """
    return read_as(file, kind, refused=CatalogRefused, example=EXAMPLE)


def parse_entry(text: str, file: Path, kind: type[T]) -> T:
    """An entry in a text that was read from elsewhere; `file` names it in errors. Raises CatalogRefused."""
    try:
        document = parse_yaml(text)
    except Invalid as problem:
        raise CatalogRefused(f"{shown(file)} {problem}", hint=EXAMPLE) from None
    return _validated(file, document, kind, CatalogRefused, EXAMPLE)


def read_as(file: Path, kind: type[T], *, refused: type[BadInput], example: str) -> T:
    """A YAML file that a person writes, as a model. `example` is the hint for a value that is not valid.

    Raises `refused` with the key and, if the key is unknown, the closest valid one.
    """
    return _validated(file, _document(file, refused, example), kind, refused, example)


def _document(file: Path, refused: type[BadInput], example: str) -> Any:
    try:
        return parse_yaml(read_text(file))
    except FileRefused as problem:
        raise refused(problem.message, hint=problem.hint) from None
    except Invalid as problem:
        raise refused(f"{shown(file)} {problem}", hint=example) from None


def _validated(file: Path, document: Any, kind: type[T], refused: type[BadInput], example: str) -> T:
    try:
        return kind.model_validate(document)
    except ValidationError as problem:
        error = _telling(problem)
        raise refused(f"{shown(file)}: {_said(error)}", hint=_hint(error, kind) or example) from None


def read_extended(packaged: Traversable, own: Path | None, kind: type[T]) -> Iterator[T]:
    """The entries of a folder, the packaged ones first, each with what it takes from the entry that `extends` names.

    Raises CatalogRefused for a file of a custom catalog that is not valid, and if an entry extends itself or one that
    does not exist. An entry that extends its own name extends the packaged entry of that name.
    """
    known = _by_name(map(_packaged, packaged_files(packaged)))
    for entry in known.values():
        yield kind.model_validate(_extended(entry, known, {}))
    if own is None or not own.is_dir():
        return
    read = [(file, _document(file, CatalogRefused, EXAMPLE)) for file in own_files(own)]
    owned = _by_name(document for _, document in read)
    for file, document in read:
        try:
            whole = _extended(document, {**known, **owned}, known)
        except Invalid as problem:
            raise CatalogRefused(f"{shown(file)} {problem}", hint=EXAMPLE) from None
        yield _validated(file, whole, kind, CatalogRefused, EXAMPLE)


def _by_name(documents: Iterable[Any]) -> dict[str, Any]:
    return {str(one["name"]): one for one in documents if isinstance(one, dict) and "name" in one}


def _extended(document: Any, known: Mapping[str, Any], packaged: Mapping[str, Any]) -> Any:
    """The document over those that it extends. Raises Invalid."""
    chain = [document]
    while isinstance(chain[-1], dict) and "extends" in chain[-1]:
        name = str(chain[-1]["extends"])
        base = (packaged if name == str(chain[-1].get("name")) else known).get(name)
        if base is None:
            near = difflib.get_close_matches(name[:LONGEST_KEY], known.keys() - {name}, n=1)
            raise Invalid(
                f"extends {place_of((name,))}, which is not in the catalog" + (f" ({near[0]}?)" if near else "")
            )
        if any(base is one for one in chain):
            raise Invalid(f"extends {place_of((name,))}, which extends it")
        chain.append(base)
    if len(chain) == 1:
        return document
    whole = reduce(_merged, reversed(chain))
    return {key: value for key, value in whole.items() if key != "extends"}


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one: those within are merged, `null` removes a key, and any other value replaces the base's.

    In a list of engines, each one is merged with the base's engine of the same release.
    """
    whole = dict(base)
    for key, value in over.items():
        before = whole.get(key)
        if value is None:
            whole.pop(key, None)
        elif isinstance(value, dict):
            whole[key] = _merged(before if isinstance(before, dict) else {}, value)
        elif key == "engines" and isinstance(value, list) and isinstance(before, list):
            whole[key] = [_merged(_of_release(before, one), one) if isinstance(one, dict) else one for one in value]
        else:
            whole[key] = value
    return whole


def _of_release(engines: Iterable[Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    named = (one for one in engines if isinstance(one, dict) and one.get("release") == wanted.get("release"))
    return next(named, {})


def _telling(problem: ValidationError) -> ErrorDetails:
    """The error to report: a misspelt key is also a missing key, and the misspelling is the one to fix."""
    errors = problem.errors()
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def _said(error: ErrorDetails) -> str:
    place = place_of(error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {place}"
    return f"{place or 'the file'}: {error['msg']}"


def _hint(error: ErrorDetails, kind: type[BaseModel]) -> str:
    """The valid keys for an unknown one; empty for another error."""
    if error["type"] != "extra_forbidden":
        return ""
    known = sorted(_keys_at(kind, error["loc"][:-1]))
    near = difflib.get_close_matches(str(error["loc"][-1])[:LONGEST_KEY], known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"valid keys: {', '.join(known)}"


def _keys_at(kind: type[BaseModel], place: tuple[int | str, ...]) -> set[str]:
    """The valid keys at a place within an entry."""
    for step in place:
        field = kind.model_fields.get(str(step))
        if field is not None:
            kind = next(models_in(field.annotation), kind)
    return set(kind.model_fields)


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in a field's type: one, a list of them, or a mapping to them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


# `verified`: run by this project. `reported`: by the named source. `untested`: read or inferred, not run. `computed`:
# another profile's settings with a GPU's own figures; no file of the catalog has it.
Evidence = Literal["verified", "reported", "untested", "computed"]

Architecture = Literal["x86_64", "aarch64"]  # the processor architecture, as `uname -m` prints it

# How a target's weights are stored.
#
# `nvfp4-modelopt` is ModelOpt's `quant_algo: NVFP4`, `nvfp4-awq` its `NVFP4_AWQ` with `pre_quant_scale`, and
# `nvfp4-compressed-tensors` llm-compressor's `nvfp4-pack-quantized`: three formats that need three loaders.
# `mixed-modelopt` is ModelOpt's `MIXED_PRECISION`; `int4-compressed-tensors` is `pack-quantized`.
Quantisation = Literal[
    "bf16",
    "fp8",
    "nvfp4-modelopt",
    "nvfp4-awq",
    "nvfp4-compressed-tensors",
    "mixed-modelopt",
    "mxfp4",
    "mxfp4-compressed-tensors",
    "mxfp8",
    "int4-autoround",
    "int4-awq",
    "int4-gptq",
    "int4-compressed-tensors",
    "int8-compressed-tensors",
    "bitsandbytes",
    "quark",
    "torchao",
    "gguf",
]


# What a target's attention needs of a backend.
#
# `image-prefix`: the tokens of an image attend to each other in both directions. `sinks`: each head has a learned
# sink. `latent`: one compressed vector per token and layer (MLA).
AttentionTrait = Literal["image-prefix", "sinks", "latent"]


class Entry(BaseModel):
    """A node of a catalog file. Unknown keys are rejected; entries are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CatalogSetting(Entry):
    """The value of one setting, with its reason."""

    value: Annotated[str | int | float | bool, Field(description="value; `.env` has it as text")]
    reason: Annotated[str, Field(min_length=10, description="why this value, in one sentence for the owner of the box")]
    source: Annotated[str, Field(description="source of the fact: a document or a measurement")] = ""


Settings = dict[str, CatalogSetting]  # settings by their name in `.env`


class Evidenced(Entry):
    """The evidence that an entry works."""

    state: Annotated[Evidence, Field(description="run by this project, reported by the source, untested, or computed")]
    by: Annotated[str, Field(description="who ran it, on which hardware, when; or the document that says so")]
