"""A recipe of others as a plan of ours: read from a file, a URL, standard input or the text itself."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.document import Documented, Hidden
from dflash_deploy.errors import BadInput, DeployError
from dflash_deploy.foreign.documents import Compose
from dflash_deploy.foreign.forms import MOST_CHARACTERS, read_recipe
from dflash_deploy.foreign.items import ForeignRecipe
from dflash_deploy.foreign.mapping import Translated, Translator, engine_of, named_weights, pair_of, with_options
from dflash_deploy.host.ask import CommandOutput, ask
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.intake.files import STDIN, read_argument
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import make_plan
from dflash_deploy.serve.engines import DEFAULT
from dflash_deploy.serve.settings import Settings

# Gives the choice with an entry for a model that the catalog does not have: `operations.described.with_models`.
Find = Callable[[Choice], Choice]


@dataclass(frozen=True)
class ForeignPlan(Documented):
    """What a recipe of others sets, what became of each of it, and the plan with what was taken over."""

    form: str
    """Form of the recipe, such as `docker run` or `Compose file`."""
    engine: str
    """Name of the engine release that its options were checked against."""
    model: str
    """Name of the model in the catalog, or the recipe's name for it if the catalog has none."""
    items: tuple[Translated, ...]
    """Everything that the recipe sets, in its order."""
    counts: Mapping[str, int]
    """How many items ended in each way."""
    choice: Hidden[Choice]
    plan: Hidden[Plan | None]
    failure: Hidden[DeployError | None]


def recipe_text(source: str) -> str:
    """The text of a recipe: of an https:// URL, of standard input (`-`), of a file, or a command with blanks itself.

    Raises BadInput, DownloadFailed, and the errors of files that cannot be read.
    """
    if "://" in source.split(" ", maxsplit=1)[0]:
        from dflash_deploy.intake.web import fetch_text  # noqa: PLC0415 - `plan` reads no URL

        return fetch_text(source, limit=MOST_CHARACTERS)
    if source != str(STDIN) and any(map(str.isspace, source)) and not _exists(source):
        return source
    return read_argument(Path(source), limit=MOST_CHARACTERS)


_COMPOSE_TIMEOUT = 20  # seconds
_UNSET = re.compile(r"__unset_(\w+)__")  # replaces a variable that nothing sets, until the file is read


def composed(source: str) -> Compose:
    """What Docker Compose makes of a file: its anchors, `extends`, `env_file`, profiles and variables.

    Variables come from the `.env` beside a file, and none from this process. Nothing is fetched.
    """

    def read(text: str) -> tuple[Mapping[str, Any] | None, str]:
        with tempfile.TemporaryDirectory() as empty:
            file = Path(source) if _exists(source) and Path(source).is_file() else Path(empty) / "compose.yaml"
            if file.parent == Path(empty):
                file.write_text(text, encoding="utf-8")
            directory = file.absolute().parent
            beside = dotenv_values(directory / ".env") if (directory / ".env").is_file() else {}
            names = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text)) - set(beside)
            defaults = set(re.findall(r"\$\{([A-Za-z_]\w*):?[-+=]", text))
            marked = {name: f"__unset_{name}__" for name in names - defaults}
            found = _asked_compose(file, marked)
            if not found.good:
                # a variable where Compose wants a number: empty, as Compose has it, unless it is required
                required = set(re.findall(r"\$\{([A-Za-z_]\w*):?\?", text))
                found = _asked_compose(file, {name: value for name, value in marked.items() if name in required})
        if found.absent:
            return (
                None,
                "read without Docker Compose, which is not installed: `extends`, `include` and `env_file` are not",
            )
        try:
            resolved = parse_object(_UNSET.sub(r"${\1}", found.out)) if found.good else None
        except Invalid:
            resolved = None
        if resolved is None:
            lines = [line for line in (found.err or found.problem).splitlines() if "level=warning" not in line]
            said = " ".join(" ".join(lines).split())[-200:]
            return None, f"read without Docker Compose, which refuses it: {said}"
        return resolved, ""

    return read


def _asked_compose(file: Path, variables: Mapping[str, str]) -> CommandOutput:
    """`config` of the plugin, else of a `docker-compose` on PATH. Remote resources are switched off."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_CONFIG") if name in os.environ}
    off = {"COMPOSE_EXPERIMENTAL_GIT_REMOTE": "0", "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "0"}
    words = ("-f", str(file.absolute()), "--profile", "*", "config", "--format", "json", "--no-path-resolution")
    found = CommandOutput(absent=True)
    for program in (("docker", "compose"), ("docker-compose",)):
        found = ask(
            *program,
            *words,
            timeout=_COMPOSE_TIMEOUT,
            environment={**variables, **kept, **off},
            directory=file.absolute().parent,
        )
        if found.absent or "unknown" in found.err[:60] or "is not a docker command" in found.err:
            found = CommandOutput(absent=True)
            continue
        break
    return found


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def plan_from(
    text: str,
    choice: Choice,
    facts: HostFacts | None = None,
    *,
    find: Find | None = None,
    service: str = "",
    compose: Compose | None = None,
) -> ForeignPlan:
    """A recipe as a plan for this machine; options that are given override the recipe.

    `find` reads the headers of a model that the catalog does not have. Without a plan, as for a model that is not
    found, `failure` says why. Raises RecipeRefused.
    """
    catalog = load_catalog()
    recipe = read_recipe(text, service, compose)
    if not recipe.engines:
        recipe = replace(recipe, engines=(choice.engine or _engine_of_variables(recipe, catalog),))
    engine = choice.engine or engine_of(recipe, catalog)
    kind = catalog.engines[engine].engine if engine in catalog.engines else engine
    recipe = with_options(recipe, kind, catalog)
    pair = pair_of(recipe, kind, catalog)
    asked = replace(
        choice, model=choice.model or (pair.name if isinstance(pair, ModelPair) else pair or None), engine=engine
    )
    missing = None
    if find is not None and (choice.model or choice.drafter_of or isinstance(pair, str)):
        drafter = named_weights(recipe, kind, "drafter") if isinstance(pair, str) and choice.model is None else ""
        asked, missing = _found(asked, drafter, find)
    if asked.family is not None:
        pair = ModelPair(asked.family, asked.family.targets[0])
    base = _planned(asked, facts)[0] if asked.model and not missing else None
    release = base.engine if base else _release(asked, catalog)
    translator = Translator(recipe, release, pair, catalog, _drafts_of(base) if base else "")
    rows = translator.rows(base.settings.extra_args if base else ())
    drafting = Settings.dflash_drafter.name
    given = {
        Settings.max_model_len.name: choice.max_model_len,
        Settings.max_num_seqs.name: choice.concurrency,
        Settings.dflash_bind.name: choice.host,
        Settings.dflash_port.name: choice.port,
        drafting: None if asked.drafter else "off",
    }
    settings = {name: value for name, value in translator.settings.items() if given.get(name) is None}
    off = settings.get(drafting) == "off" and settings.pop(drafting)
    asked = replace(asked, edited={**settings, **choice.edited}, drafter=asked.drafter and not off)
    if missing is None and not asked.model:
        missing = BadInput("the recipe does not say which model it serves", hint="name it: --model MODEL")
    plan, failure = (None, missing) if missing else _planned(asked, facts)
    backend = Settings.attention_backend.name
    if plan and backend not in asked.edited and {"fp8-kv-refused", "kv-dtype-refused"} & {f.id for f in plan.errors}:
        asked = replace(asked, edited={**asked.edited, backend: ""})
        plan, failure = _planned(asked, facts)
        why = "the recipe leaves it to the engine, and the profile's does not read this type of KV cache"
        rows = (*rows, Translated("argument", "--attention-backend", "", 0, "taken", f"{backend}=", why))
    counts: dict[str, int] = {
        fate: sum(row.fate == fate for row in rows) for fate in dict.fromkeys(row.fate for row in rows)
    }
    return ForeignPlan(recipe.form, release.name, asked.model or "", rows, counts, asked, plan, failure)


def _drafts_of(plan: Plan) -> str:
    if not plan.speculating:
        return "the plan decodes without drafts"
    drafter = plan.pair.drafter
    own = "the MTP head" if plan.uses_mtp_head else drafter.repo or drafter.bundled or drafter.path
    return f"the plan drafts with {own}"


def _found(asked: Choice, drafter: str, find: Find) -> tuple[Choice, DeployError | None]:
    """The choice with the entry of its model, and why it has none; without a drafter that does not fit."""
    try:
        return find(replace(asked, drafter_of=asked.drafter_of or drafter or None)), None
    except DeployError as problem:
        return _found(asked, "", find) if drafter else (asked, problem)


def _engine_of_variables(recipe: ForeignRecipe, catalog: Catalog) -> str:
    """The engine of a file of variables: the one it names, else the first."""
    named = next((item.value for item in recipe.items if item.name == Settings.dflash_engine.name), "")
    return catalog.engines[named].engine if named in catalog.engines else DEFAULT


def _planned(choice: Choice, facts: HostFacts | None) -> tuple[Plan | None, DeployError | None]:
    try:
        return make_plan(choice, facts=facts), None
    except DeployError as problem:
        return None, problem


def _release(choice: Choice, catalog: Catalog) -> EngineRelease:
    """The release that is asked for, else the first one of the engine whose options are known."""
    named = catalog.engines.get(choice.engine or "")
    if named is not None and named.engine != choice.engine:
        return named
    of_engine = [one for one in catalog.engines.values() if one.engine == choice.engine]
    return min(of_engine or catalog.engines.values(), key=lambda one: (one.name not in catalog.options, one.cpu))
