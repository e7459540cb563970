"""Models that the catalog does not have: `init --model`, `plan --model`, `models add`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Family, ModelPair, entry_text
from dflash_deploy.catalog.read import parse_entry, read_entry
from dflash_deploy.deployment.files import PUBLIC, write_if_changed
from dflash_deploy.document import Documented, Hidden
from dflash_deploy.errors import BadInput, CatalogRefused, NotPossible, UnknownPair
from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.web import fetch_text
from dflash_deploy.plan.described import describe, drafter_of
from dflash_deploy.plan.model_metadata import ModelMetadata
from dflash_deploy.redact import Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP, OFF
from dflash_deploy.weights.described import ModelFinder
from dflash_deploy.weights.hub import Source

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Choice

YAML = (".yaml", ".yml")
DIGEST = "#sha256="


def with_models(choice: Choice) -> Choice:
    """The choice with an entry for a model or draft model that the catalog does not have.

    Raises UnknownPair for a name that is neither in the catalog nor a directory, file or repository; NotPossible with
    the reason if no engine can serve it; CatalogRefused for an entry that is not valid; and the errors of the Hub.
    """
    named = choice.drafter_of
    if named is not None and named.lower() in OFF:
        choice = replace(choice, drafter=False)
    elif named == MTP:
        choice = replace(choice, mtp=True)
    own = named if choice.drafter and not choice.mtp else None
    if choice.family is not None or (choice.model is None and own is None):
        return choice
    if choice.model is None:
        raise BadInput("--drafter needs the target that it belongs to", hint="name the target with --model")
    family = family_named(choice.model, own, choice.models_dir, search=choice.drafter and not choice.mtp)
    return choice if family is None else replace(choice, model=family.targets[0].name, family=family)


def family_named(model: str, drafter: str | None, models_dir: Path, *, search: bool = True) -> Family | None:
    """The entry of a model, with the draft model that is named, else one that is found if `search` is set.

    `None` for a model of the catalog, with the catalog's own draft model. Raises what `with_models` raises.
    """
    finder = ModelFinder(Source.of(Secret(os.environ.get(Settings.hf_token.name, ""))), models_dir)
    if model.partition(DIGEST)[0].endswith(YAML):
        entry = entry_at(model)
        return _with_drafter(entry.targets[0].name, entry, drafter, finder)
    try:
        known = load_catalog().pair(model)
    except UnknownPair:
        drafters = {(pair.drafter.repo or "").lower() for pair in load_catalog().pairs.values()}
        # else it is one word that is misspelt
        is_place = "/" in model or model.endswith(".gguf") or Path(model).is_dir()
        if not is_place or model.lower() in drafters:
            raise
    else:
        return None if drafter is None else _with_drafter(known.name, known.family, drafter, finder)
    target = finder.find(model)
    if drafter is not None:
        return describe(target, finder.find(drafter))
    return describe(target, finder.drafter_for(target) if search and not target.drafts else None)


def _with_drafter(name: str, family: Family, drafter: str | None, finder: ModelFinder) -> Family:
    """A known family with another draft model, for one of its targets."""
    if drafter is None:
        return family
    pair = ModelPair(family, next(one for one in family.targets if one.name == name))
    shape = pair.shape
    known = ModelMetadata(hidden_size=shape.hidden_size, layers=shape.layers, vocabulary=shape.vocabulary)
    own = drafter_of(finder.find(drafter), known, name)
    changed = pair.target.model_copy(update={"name": f"{name}-own-drafter", "drafter": own})
    return family.model_copy(update={"targets": [changed], "acceptance": []})


def entry_at(place: str) -> Family:
    """The entry in a file, or at a URL that ends with `#sha256=` and its digest.

    Raises CatalogRefused, and what `fetch_text` raises.
    """
    if "://" not in place:
        return read_entry(Path(place).expanduser(), Family)
    return parse_entry(pinned_text(place), Path(urlsplit(place).path), Family)


def pinned_text(place: str) -> str:
    """The text at a URL that ends with `#sha256=` and its digest.

    Raises CatalogRefused for another digest, and what `fetch_text` raises.
    """
    url, _, pinned = place.partition(DIGEST)
    text = fetch_text(url, limit=MIB)
    digest = sha256(text.encode()).hexdigest()
    if pinned.lower() != digest:
        said = "has another digest than the URL says" if pinned else "has no digest in its URL"
        raise CatalogRefused(f"the file {said}", hint=f"read it, and if it is right, append {DIGEST}{digest}")
    return text


@dataclass(frozen=True)
class AddedModel(Documented):
    """The catalog entry of a model, read from its headers."""

    name: str
    """Name, as `--model` takes it once the entry is in a custom catalog."""
    file: Path | None
    """The file that it was written to; null if it was only printed."""
    entry: str
    """The entry as YAML."""
    family: Hidden[Family]


def add(model: str, drafter: str | None, models_dir: Path, to: Path | None = None) -> AddedModel:
    """Describe a model, and write its entry to a custom catalog if `to` names its directory.

    Raises NotPossible if the catalog has the model, and what `with_models` raises.
    """
    search = drafter is None
    named = None if drafter is None or drafter.lower() in {*OFF, MTP} else drafter
    family = family_named(model, named, models_dir, search=search)
    if family is None:
        raise NotPossible(f"the catalog has {model} already", hint=f"`dflash-deploy models show {model}`")
    text, name = entry_text(family), family.targets[0].name
    if to is None:
        return AddedModel(name, None, text, family)
    place = to / "families" / f"{family.name}.yaml"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_if_changed(place, text, mode=PUBLIC)
    except OSError as problem:
        raise BadInput(f"{place} cannot be written: {problem.strerror}", hint="choose another directory") from None
    return AddedModel(name, place, text, family)
