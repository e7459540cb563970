"""Finds weights by what `--model` and `--drafter` name: a directory, a GGUF, or a repository on the Hugging Face Hub.

Only headers are read: config.json, tokenizer and chat template, and the header of the GGUF or safetensors file that has
the embedding. What that header says overrides config.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dflash_deploy.catalog.models import Weights
from dflash_deploy.errors import DeployError, FileRefused, NotPossible, RepositoryMissing, WeightsMissing
from dflash_deploy.intake.documents import ShardIndex, parse_document
from dflash_deploy.intake.files import open_file, read_bytes
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.plan.described import FoundModel, mismatch
from dflash_deploy.plan.model_metadata import nested
from dflash_deploy.plan.propose import directory_of
from dflash_deploy.weights.ahead import header_of
from dflash_deploy.weights.check import INDEX, LARGEST_INDEX, MOST_HEADER, MOST_VALUES, check_weights
from dflash_deploy.weights.checkpoints import LARGEST_CONFIG, metadata_in, with_modelopt
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.gguf import NotGguf, read_header
from dflash_deploy.weights.hub import Source, drafters_for, published, read_published
from dflash_deploy.weights.lock import LockedModel, needed

# The quantization of a GGUF repository that is chosen if no file is named, the first that it has.
PREFERRED = ("q4_k_m", "q4_k_xl", "q4_k", "q4", "q5", "q6", "q8")

TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")

_LAYER = re.compile(r"^(?:model\.|language_model\.)*layers\.(\d+)\.")
_PROJECTOR = "mmproj"
_PATH = re.compile(r"[/.~]|[A-Za-z]:[/\\]")  # the beginning of a path, also of one of Windows

# Returns a file of a model by its name, or, with a length above 0, that many of its bytes from a place.
Read = Callable[[str, int, int], bytes]


@dataclass(frozen=True)
class ModelFinder:
    """Where models are found: the Hub, and the directory that weights are stored below."""

    source: Source
    models_dir: Path

    def find(self, name: str) -> FoundModel:
        """The model of that name. Raises WeightsMissing, NotPossible, and the errors of refused requests to the Hub."""
        place = Path(name).expanduser()
        if place.is_dir():
            return _in_directory(place.resolve())
        if not place.exists() and (_PATH.match(name) or (name.endswith(".gguf") and name.count("/") < 2)):
            shown = name if re.match(r"[A-Za-z]:", name) else place.absolute()
            raise WeightsMissing(
                f"{shown} does not exist", hint="name a directory or GGUF file of this machine, or --model OWNER/NAME"
            )
        if place.is_file():
            return _gguf(place)
        return self._on_hub(name)

    def drafter_for(self, target: FoundModel) -> FoundModel | None:
        """A draft model on the Hub whose card declares this target and that fits it; `None` if there is none."""
        repo = target.place.get("repo")
        for name in drafters_for(self.source, str(repo)) if repo else ():
            try:
                found = self._on_hub(name)
            except DeployError:
                # one of several: gated, or of another kind
                continue
            if found.drafts and not mismatch(target.metadata, found.metadata):
                return found
        return None

    def _on_hub(self, name: str) -> FoundModel:
        bare = name.removeprefix("https://").removeprefix("huggingface.co/").removeprefix("hf.co/")
        owner, _, rest = bare.partition("/")
        repo, _, file = rest.partition("/")
        repo, _, mark = repo.partition(":")
        there = published(self.source, f"{owner}/{repo}")
        model = there.model
        title = model.repo.rsplit("/", 1)[-1]
        place: dict[str, Any] = {"repo": model.repo, "revision": model.commit}
        place |= {"licence": there.licence, "gated": there.gated}
        files = needed(model.files, "target")
        size = sum(one.size for one in files if one.path.endswith(".safetensors"))
        if file or mark or not size:
            return self._gguf_on_hub(model, file, place, mark.lower())

        def read(path: str, begin: int, length: int) -> bytes:
            names = {one.path for one in files}
            return read_published(self.source, model, path, begin, length) if path in names else b""

        node = _object(read("config.json", 0, 0))
        if not node:
            raise RepositoryMissing(f"{model.repo} has no valid config.json", hint="name a repository with a model")
        whole = with_modelopt(node, _object(read("hf_quant_config.json", 0, 0)))
        return _corrected(FoundModel(title, place, whole, size, _template(read)), read)

    def _gguf_on_hub(self, model: LockedModel, file: str, place: Mapping[str, Any], mark: str = "") -> FoundModel:
        """The GGUF of that name, else one whose name has `mark`, as in llama.cpp's OWNER/REPO:Q4_K_M."""
        every = [one for one in model.files if one.path.endswith(".gguf")]
        projector = next((one.path for one in every if _PROJECTOR in one.path.lower()), None)
        targets = [one for one in every if _PROJECTOR not in one.path.lower() and file in {"", one.path}]
        targets = [one for one in targets if mark in one.path.lower()]
        if not targets:
            wanted = file or (f"GGUF of {mark}" if mark else "safetensors file and no GGUF")
            raise RepositoryMissing(
                f"{model.repo} has no {wanted}",
                hint=f"see the files of the repository: {self.source.shown}/{model.repo}/tree/main",
            )
        alike = (one for mark in PREFERRED for one in targets if mark in one.path.lower())
        chosen = targets[0] if file else next(alike, targets[0])
        named = {**place, "file": chosen.path}
        weights = Weights(**named, bytes=max(chosen.size, 1))
        directory = Path(directory_of(weights, self.models_dir))
        node = header_of(self.source, model, chosen, directory, DownloadOptions())
        title = PurePosixPath(chosen.path).stem
        return _of_header(title, named, node, chosen.size, None if _is_drafter(node) else projector)


def _in_directory(place: Path) -> FoundModel:
    """The model in a directory. Raises WeightsMissing."""
    config = metadata_in(place)
    ggufs = [file for file in sorted(place.glob("*.gguf")) if _PROJECTOR not in file.name.lower()]
    if config is None and ggufs:
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs[:5])
            raise NotPossible(f"{place} has {len(ggufs)} GGUF files: {names}", hint="name one of them")
        return _gguf(ggufs[0])
    check_weights(place, role="model", remedy="name a directory with config.json and safetensors files, or a GGUF file")

    def read(path: str, begin: int, length: int) -> bytes:
        try:
            return read_bytes(place / path, limit=LARGEST_INDEX) if not length else _part(place / path, begin, length)
        except FileRefused:
            return b""

    size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    licence = nested(config, "license")
    found = {"path": str(place), "licence": licence if isinstance(licence, str) else ""}
    return _corrected(FoundModel(place.name, found, config or {}, size, _template(read)), read)


def _part(file: Path, begin: int, length: int) -> bytes:
    with open_file(file) as content:
        content.seek(begin)
        return content.read(length)


def _gguf(file: Path) -> FoundModel:
    """The model in a GGUF file. Raises WeightsMissing if it is missing, damaged or cut short."""
    place = file.resolve()
    check_weights(place.parent, role="model", remedy="download the file again", file=place.name)
    try:
        node = read_header(place, tensors=True)
    except NotGguf as problem:
        raise WeightsMissing(f"{place} is not a valid GGUF: {problem}", hint="download the file again") from None
    beside = sorted(one.name for one in place.parent.glob(f"{_PROJECTOR}*.gguf"))
    # a projector of another model is refused by the engine: only one beside a single target is taken
    others = [one for one in place.parent.glob("*.gguf") if _PROJECTOR not in one.name and one != place]
    alone = beside and not [one for one in others if not _is_drafter(_header_or_none(one))]
    projector = beside[0] if alone and not _is_drafter(node) else None
    found = {"path": str(place.parent), "file": place.name, "licence": str(node.get("general.license", ""))}
    return _of_header(place.stem, found, node, place.stat().st_size, projector)


def _header_or_none(file: Path) -> Mapping[str, object]:
    try:
        return read_header(file)
    except (NotGguf, FileRefused):
        return {}


def _is_drafter(node: Mapping[str, object]) -> bool:
    return FoundModel("", {}, node, 0).drafts


def _of_header(
    title: str, place: Mapping[str, Any], node: Mapping[str, object], size: int, projector: str | None
) -> FoundModel:
    template = node.get("tokenizer.chat_template")
    if projector:
        # its own header has the shape; the plan needs to know only that there is one
        place, node = {**place, "projector": projector}, {**node, "vision_config": {}}
    return FoundModel(title, place, node, size, template if isinstance(template, str) else "")


def _template(read: Read) -> str:
    """The chat template: of its own file, else in tokenizer_config.json; empty if there is none."""
    for name in TEMPLATES:
        content = read(name, 0, 0)
        if name.endswith(".jinja") and content:
            return content.decode("utf-8", "replace")
        stated = _object(content).get("chat_template")
        if isinstance(stated, list):
            # several, by name: the first is `default`
            stated = next((one.get("template") for one in stated if isinstance(one, dict)), None)
        if isinstance(stated, str):
            return stated
    return ""


def _object(content: bytes) -> dict[str, Any]:
    try:
        return parse_object(content, limit=LARGEST_CONFIG) if content else {}
    except Invalid:
        return {}


def _corrected(found: FoundModel, read: Read) -> FoundModel:
    """The model with the sizes in its safetensors headers, which override those of config.json."""
    stated = found.metadata
    vocabulary, hidden, layers = _sizes(read, found.drafts)
    wrong = {
        key: (said, seen)
        for key, said, seen in (
            ("hidden_size", stated.hidden_size, hidden),
            ("vocab_size", stated.vocabulary, vocabulary),
            ("num_hidden_layers", stated.layers, layers),
        )
        if seen and said != seen
    }
    if not wrong:
        return found
    notes = tuple(f"config.json says {key} {said}, the weights have {seen}" for key, (said, seen) in wrong.items())
    values = {key: seen for key, (_, seen) in wrong.items()}
    inner = found.node.get("text_config")
    node: Mapping[str, object] = {**found.node, **values}
    if isinstance(inner, dict):
        node = {**node, "text_config": {**inner, **values}}
    return replace(found, node=node, notes=notes)


def _sizes(read: Read, drafts: bool) -> tuple[int, int, int]:
    """Vocabulary, hidden size and number of layers by the tensors; 0 for what they do not show."""
    index, file = _index(read), "model.safetensors"
    names = set(index)
    if index:
        file = next((shard for name, shard in index.items() if name.endswith("embed_tokens.weight")), file)
    header = _tensors(read, file)
    names |= header.keys()
    shapes = [one.get("shape") for name, one in header.items() if name.endswith("embed_tokens.weight")]
    embedding = next((one for one in shapes if isinstance(one, list) and len(one) == 2), [0, 0])
    numbers = {int(found[1]) for name in names if (found := _LAYER.match(name))}
    # the MTP head of some models is a layer after the last one
    heads = {int(found[1]) for name in names if ".eh_proj" in name if (found := _LAYER.match(name))}
    layers = 0 if drafts or not numbers else max(numbers) + 1 - len(heads)
    return int(embedding[0]), int(embedding[1]), layers


def _index(read: Read) -> Mapping[str, str]:
    content = read(INDEX, 0, 0)
    try:
        return parse_document(content, ShardIndex, limit=LARGEST_INDEX).weight_map if content else {}
    except Invalid:
        return {}


def _tensors(read: Read, file: str) -> dict[str, Any]:
    """The header of a safetensors file; empty if it is missing or damaged."""
    length = int.from_bytes(read(file, 0, 8), "little")
    if not 0 < length <= MOST_HEADER:
        return {}
    try:
        header = parse_object(read(file, 8, length), limit=MOST_HEADER, values=MOST_VALUES)
    except Invalid:
        return {}
    return {name: one for name, one in header.items() if isinstance(one, dict)}
