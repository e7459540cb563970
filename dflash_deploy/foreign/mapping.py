"""Each item of a recipe is taken, changed or not taken, with a reason. What is taken over are settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any, Literal

from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair, Weights
from dflash_deploy.catalog.releases import EngineRelease, Renamed
from dflash_deploy.catalog.settings import passed_on, setting_names
from dflash_deploy.document import Documented
from dflash_deploy.errors import UnknownPair
from dflash_deploy.foreign.command import ADDED, ELSEWHERE, SECOND, arguments_of
from dflash_deploy.foreign.documents import READER
from dflash_deploy.foreign.items import ForeignRecipe, ItemKind, RecipeItem, RecipeRefused, ShellWord
from dflash_deploy.foreign.rules import EngineRules, ForeignRule, container_rules, engine_rules
from dflash_deploy.plan.compatible import below
from dflash_deploy.redact import REDACTED, redact_by_shape
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP

# `dangerous`: not taken, since it would open the machine, run code of others, or hold a secret.
Fate = Literal["dangerous", "not-taken", "changed", "taken"]

FATES: Mapping[Fate, str] = {
    "dangerous": "not taken over: read why",
    "not-taken": "not taken over",
    "changed": "the plan does it by itself, or in another way",
    "taken": "taken over",
}

# Names of what holds a secret. Numbers of tokens are settings.
_SECRET = re.compile(
    r"(?i)(?:^|[_.-])(?:token|(?:api)?keys?|secrets?|pass(?:w(?:or)?d)?|pwd|passphrase|credentials?|cookie)$"
)
_MTP = re.compile(r"(?i)(?:^|[_-])mtp(?:$|_)|^nextn$")  # the MTP head, in the spellings of the engines' versions
# A file or directory of the author's machine or image; the image of vLLM has its examples too.
_PLACE = re.compile(r"(?:^|[=,:\s\"\[])(?!/vllm-workspace/)(?:/|\.{1,2}/|~/|\$\{?HOME|[A-Za-z]:[/\\])[\w.~-]")
_FILE = re.compile(r"^[^\s:{}\[\]]+\.(?:jinja2?|j2|json|pem|crt|key|py|ya?ml|gguf|safetensors|bin|txt|csv|cfg|toml)$")
_PLACEHOLDER = re.compile(r"__\w+__|<[^<>]*>|\{\{.*\}\}")
_TRUE = ("1", "true", "on", "enabled")

MOST_ITEMS = 2000  # of one recipe; the largest that was collected sets 71
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")  # a repository in the cache of huggingface_hub
_IN_OTHER_WORDS = "the same in other words"
_EVERYWHERE = ("0.0.0.0", "::", "*")  # noqa: S104 - what is not taken over
_OPEN = "every machine that reaches this one can connect: --host if you mean it"

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Translated(Documented):
    """One thing that the recipe sets, and what became of it. Secrets in it are redacted."""

    kind: ItemKind
    """`argument` of the engine, `variable`, option of the `container`, or another `command` of the script."""
    name: str
    """Its name, as in `--max-model-len`. A key of a JSON value follows a dot."""
    value: str
    """Its value; empty if it has none."""
    line: int
    """Line of the recipe; 0 if it is not known."""
    fate: Fate
    """What became of it."""
    ours: str
    """The line of `.env` that has it, or that is for the same; empty if there is none."""
    why: str
    """The reason."""


def engine_of(recipe: ForeignRecipe, catalog: Catalog) -> str:
    """The engine that a recipe starts: the release of its image, or an engine's name; empty if it names none."""
    for release in catalog.engines.values():
        tags = {base.tag for base in release.base_images.values()}
        if recipe.image in tags and release.engine in recipe.engines:
            return release.name
    written = {part for item in recipe.items for part in (item.name, f"{item.name}={item.value}")}
    marked = (name for name in recipe.engines if set(engine_rules()[name].marks) & written)
    return next(marked, next((name for name in recipe.engines if not engine_rules()[name].marks), ""))


def pair_of(recipe: ForeignRecipe, engine: str, catalog: Catalog) -> ModelPair | str:
    """The pair of a recipe's model, by repository, file or directory, with its drafter; else the model's name.

    Empty if the name begins with a variable that the recipe does not set, and no pair has its last part.
    """
    model, drafter, file = (named_weights(recipe, engine, role) for role in ("model", "drafter", "file"))
    matching = [pair for pair in catalog.pairs.values() if _names(pair.target, model) or model.lower() == pair.name]
    both = [pair for pair in matching if _names(pair.drafter, drafter)]
    drafters = {name for one in catalog.engines.values() if one.engine == engine for name in one.drafters}
    fitting = [pair for pair in matching if pair.drafter.architecture in drafters]
    other = f"{model}/{file}" if model and file else model
    return next(iter(both or fitting or matching), "" if model.startswith("$") else other)


def with_options(recipe: ForeignRecipe, engine: str, catalog: Catalog) -> ForeignRecipe:
    """The recipe with variables that are options of the engine as such, after its own."""
    alike = (engine, engine_rules()[engine].like if engine in engine_rules() else "")
    kinds = (name for name, one in catalog.engines.items() if one.engine in alike)
    known = next((catalog.options_of_variables[name] for name in kinds if name in catalog.options_of_variables), {})
    own, more = list[RecipeItem](), list[RecipeItem]()
    for item in recipe.items:
        negated = item.name.replace("_ARG_NO_", "_ARG_")
        options = known.get(item.name) or known.get(negated, "") if item.kind == "variable" else ""
        if not options or (item.name not in known and "|" not in options):
            own.append(item)
            continue
        switch, either, opposite = options.partition("|")
        on = (item.value.lower() in _TRUE) is (item.name in known)
        flag = switch if on or not either else opposite
        value = "" if either else item.value
        more.append(
            replace(item, kind="argument", name=flag or switch, value=value, written=item.name) if flag else item
        )
    return replace(recipe, items=(*own, *more))


def named_weights(recipe: ForeignRecipe, engine: str, role: str) -> str:
    """What a recipe names as its `model`, `file` or `drafter`, outside its container; empty if it names none."""
    named = [item for item in recipe.items if _role(item, engine) == role and _ends_known(item)]
    text = next((item.value for kind in ("argument", "variable") for item in named if item.kind == kind), "")
    return _place(text, recipe.mounts)


def _ends_known(item: RecipeItem) -> bool:
    """Whether the last part of a path is known, as in `$MODELS/NAME.gguf`."""
    if _PLACEHOLDER.fullmatch(item.value):
        return False
    return not item.unset or (item.value.startswith("$") and "$" not in item.value.rpartition("/")[2] != item.value)


def _role(item: RecipeItem, engine: str) -> str:
    rules = engine_rules().get(engine)
    of_kind = {"argument": rules.arguments if rules else {}, "variable": container_rules().variables}
    rule = {**of_kind, "container": container_rules().options}.get(item.kind, {}).get(item.name)
    return rule.role if rule else ""


def _place(text: str, mounts: Mapping[str, str]) -> str:
    """A path outside the container, as far as its mounts tell."""
    text = text.replace("\\", "/")
    if cached := _CACHED.search(text):
        return f"{cached[1]}/{cached[2]}"
    for inner, outer in mounts.items():
        if text == inner or text.startswith(f"{inner}/"):
            return outer + text.removeprefix(inner)
    return text


def _names(weights: Weights, text: str) -> bool:
    """Whether a text names weights: a repository, or a path that ends in the name of repository, file or asset."""
    asked, repo = text.lower().rstrip("/"), (weights.repo or "").lower()
    if not asked:
        return False
    name, inner = PurePosixPath(asked).name, repo.rsplit("/", 1)[-1]
    if weights.bundled and asked.endswith(f"/{weights.bundled}"):
        return True
    if repo and repo in (asked, asked.partition(":")[0]):
        return True
    path = asked.startswith(("/", "~", ".", "$")) or asked.count("/") != 1
    here = inner and re.fullmatch(rf"{re.escape(inner)}(-[0-9a-f]{{8}})?", name)
    return bool((weights.file and name == PurePosixPath(weights.file.lower()).name) or (path and here))


class Translator:
    """Translates the items of one recipe for one release."""

    def __init__(
        self, recipe: ForeignRecipe, release: EngineRelease, pair: ModelPair | str, catalog: Catalog, drafts: str = ""
    ) -> None:
        """`drafts` says what the plan drafts with; empty without a plan."""
        self.recipe, self.release, self.pair, self.catalog = recipe, release, pair, catalog
        self.rules: EngineRules = engine_rules()[release.engine]
        self.known = catalog.options.get(release.name, frozenset())
        self.extra: dict[str, tuple[str, ...]] = {}
        self.settings: dict[str, str] = {}
        """What is taken over, by the names of `.env`."""
        self.written = {item.name: item.value for item in recipe.items if item.kind == "argument"}
        self.publishes = any(item.name == "--publish" for item in recipe.items)
        self.drafts = drafts
        self.method = self._other_method()
        """The method of drafting, if it is one that this program does not have."""

    def rows(self, proposed: tuple[str, ...] = ()) -> tuple[Translated, ...]:
        """Every item with its fate; `settings` has what is taken over afterwards. Raises RecipeRefused for too many.

        `proposed` are the EXTRA_ARGS of the plan without the recipe: theirs come after them.
        """
        items = [one for item in self.recipe.items for one in self._parts(item)]
        if len(items) > MOST_ITEMS:
            raise RecipeRefused(
                f"the recipe sets {len(items)} things (limit: {MOST_ITEMS})",
                hint="check that it is the right file, or pass the part that starts the engine",
            )
        rows = tuple(self._row(self._expanded(item)) for item in items)
        theirs = [word for flag, words in self.extra.items() if flag not in proposed for word in words]
        if theirs:
            self.settings[Settings.extra_args.name] = _joined((*proposed, *theirs))
        return (*rows, *self._left_to_engine())

    def _left_to_engine(self) -> Iterator[Translated]:
        """What the recipe leaves to the engine, and a profile would set: copies are of one GPU each."""
        copies, gpus = Settings.data_parallel_size.name, Settings.tensor_parallel_size
        if self.settings.get(copies, "1") != "1" and gpus.name not in self.settings:
            left = RecipeItem("argument", "--tensor-parallel-size", "", 0)
            yield replace(self._set(left, gpus, "1"), why="the recipe leaves it to the engine, which takes 1")

    def _row(self, item: RecipeItem) -> Translated:
        whole = f"{item.name}={item.value}"
        if item.kind != "command" and (_SECRET.search(item.name) or redact_by_shape(whole) != whole):
            return self._secret(item)
        # weights and caches have places of ours
        role, known = _role(item, self.release.engine), isinstance(self.pair, ModelPair) and _ends_known(item)
        if item.unset and role != "mount" and not (role == "model" and known):
            why = "runs a command" if "$(" in item.unset else "needs a variable that the recipe does not set"
            return self._as(item, "not-taken", "", f"its value {why}, and nothing is run or looked up")
        if _PLACEHOLDER.fullmatch(item.value) and role != "mount":
            return self._as(item, "not-taken", "", "a placeholder: its value is yours to fill in")
        if item.kind == "argument":
            return self._argument(item)
        if item.kind == "variable":
            return self._variable(item)
        return self._option(item) if item.kind == "container" else self._command(item)

    def _parts(self, item: RecipeItem) -> Iterable[RecipeItem]:
        """The arguments in a line of EXTRA_ARGS, each of which is judged; else the item itself."""
        if (item.kind, item.name) != ("variable", Settings.extra_args.name) or not item.value:
            return (item,)
        try:
            words = [ShellWord(word, item.line) for word in shlex.split(item.value)]
        except ValueError:
            return (replace(item, unset="an open quote"),)
        return arguments_of(words, [self.release.engine])

    def _expanded(self, item: RecipeItem) -> RecipeItem:
        """An argument that is abbreviated, as the engine's parser expands it: what begins so, if it is the only one."""
        head, dot, key = item.name.partition(".")
        if item.kind != "argument" or not self.release.kind.abbreviates or not head.startswith("--") or len(head) < 4:
            return item
        names = {*self.known, *self.rules.arguments, *self.release.kind.reserved_flags, "--host"}
        if head in names:
            return item
        longer = {one.partition(".")[0] for one in names if one.startswith(head)}
        return replace(item, name=f"{longer.pop()}{dot}{key}", written=item.name) if len(longer) == 1 else item

    def _other_method(self) -> str:
        """The method of drafting that the recipe names, if the release does not have it here; else empty.

        `a draft model` if it names one without a method, and that is not a DFlash drafter.
        """
        old = {gone.old for gone in self.release.renamed if gone.new == Settings.dflash_drafter.name}
        ruled = [(name, value, self._rule(name) or ForeignRule()) for name, value in self.written.items()]
        drafters = [value for name, value, rule in ruled if name in old or rule.role == "drafter"]
        methods = [(value, rule) for _, value, rule in ruled if rule.method]
        for value, rule in methods:
            if rule.values.get(value, value) and not (_MTP.search(value) and MTP in rule.values and not drafters):
                return value
        own = isinstance(self.pair, ModelPair) and any(_names(self.pair.drafter, value) for value in drafters)
        return "" if methods or own or not drafters or "dflash" in drafters[0].lower() else "a draft model"

    def _method(self, item: RecipeItem, rule: ForeignRule) -> Translated:
        if item.value == self.method:
            return self._of_method(item, rule.ours or rule.setting, "drafts by")
        if not rule.values.get(item.value, item.value):
            return self._as(item, "taken", rule.setting, "as the plan has it")
        return self._set(item, Settings.dflash_drafter, MTP)

    def _of_method(self, item: RecipeItem, ours: str, says: str = "belongs to") -> Translated:
        instead = f"; {self.drafts}" if self.drafts else ""
        return self._as(item, "not-taken", ours, f"{says} {self.method}{instead}")

    def _rule(self, name: str) -> ForeignRule | None:
        """The rule of an argument, or of the argument whose JSON has this key."""
        return self.rules.arguments.get(name) or self.rules.arguments.get(name.partition(".")[0])

    def _as(self, item: RecipeItem, fate: Fate, ours: str, why: str) -> Translated:
        shown = f"{item.name}={item.value}" if item.value != REDACTED else ""
        value = redact_by_shape(shown).removeprefix(f"{item.name}=") if shown else item.value
        kind: ItemKind = "variable" if item.written.isidentifier() else item.kind
        return Translated(kind, item.written or item.name, value, item.line, fate, ours, why)

    def _secret(self, item: RecipeItem) -> Translated:
        hidden = replace(item, value=REDACTED if item.value else "")
        if item.unset or not item.value or _PLACEHOLDER.fullmatch(item.value):
            return self._as(hidden, "not-taken", "", "secrets are in your .env: `init` makes an API key")
        why = "`ps` shows arguments to every user" if item.kind == "argument" else "anyone with the file has the secret"
        return self._as(hidden, "dangerous", "", f"a secret in the recipe: {why}")

    def _argument(self, item: RecipeItem) -> Translated:
        if gone := self._gone(item.name):
            return self._renamed(item, gone)
        if rule := self._rule(item.name):
            return self._by_rule(item, rule)
        if item.name == "--host":
            return self._host(item)
        if self.method and item.name.startswith(("--spec", "--no-spec")):
            return self._of_method(item, "")
        return self._reserved(item) or self._extra(item)

    def _reserved(self, item: RecipeItem) -> Translated | None:
        """An argument that has a setting; `None` if it has none."""
        flag = item.name.partition(".")[0]
        reserved = self.release.kind.reserved_flags.get(flag)
        if reserved is None:
            return None
        if len(reserved.fields) == 1 and flag == item.name:
            return self._set(item, reserved.fields[0], item.value)
        why = reserved.reason or "the plan sets this option: add what else it should have by hand"
        fate: Fate = "changed" if flag == item.name else "not-taken"
        return self._as(item, fate, " ".join(one.name for one in reserved.fields), why)

    def _gone(self, name: str) -> Renamed | None:
        head = name.partition(".")[0]
        gone = (one for one in self.release.renamed if one.old in (name, head))
        return next((one for one in gone if not below(self.release.version, one.since)), None)

    def _renamed(self, item: RecipeItem, gone: Renamed) -> Translated:
        """The new name; with their value if a value of the old name is one of the new name."""
        said = f"{self.release.title} {'refuses' if gone.effect == 'refused' else 'ignores'} it ({gone.source})"
        if not gone.new:
            return self._as(item, "not-taken", "", f"removed: {said}")
        own = {one.name: one for one in self.release.kind.settings}.get(gone.new)
        if own in (Settings.dflash_drafter, Settings.dflash_num_spec_tokens) and self.method:
            return self._of_method(item, gone.new)
        if own is not None:
            row = self._set(item, own, item.value)
            return replace(row, fate="changed", why=said, ours=row.ours if row.fate == "taken" else gone.new)
        flag, _, value = gone.new.partition(" ")
        if not item.name.startswith("-"):
            return self._as(item, "changed", flag, f"{said}; the new name has other values")
        row = self._extra(replace(item, name=flag, value=value or item.value))
        return self._as(item, "changed", row.ours or flag, said)

    def _by_rule(self, item: RecipeItem, rule: ForeignRule) -> Translated:  # noqa: PLR0911 - one for each kind of rule
        applies = not rule.when or re.search(rule.when, item.value) is not None
        if rule.of_method and self.method:
            return self._of_method(item, rule.ours or rule.setting)
        if rule.method:
            return self._method(item, rule)
        if rule.comes_with and any(one in self.written for one in rule.comes_with):
            return self._as(item, "not-taken", "", f"comes with {rule.comes_with[0]}, which is not taken over")
        if rule.role:
            return self._by_role(item, rule.role)
        if item.value in rule.instead or (rule.setting and (not rule.values or item.value in rule.values)):
            return self._by_value(item, rule)
        if applies and (why := rule.dangerous or rule.superseded):
            return self._as(item, "dangerous" if rule.dangerous else "changed", rule.ours, why)
        if item.kind == "argument" and not rule.other:
            return self._reserved(item) or self._extra(item)
        return self._as(item, "not-taken", rule.ours, rule.other or "nothing here depends on it")

    def _by_value(self, item: RecipeItem, rule: ForeignRule) -> Translated:
        if line := rule.instead.get(item.value):
            name, _, value = line.partition("=")
            if why := self._refused(name, value):
                return self._as(item, "dangerous", "", why)
            if name == Settings.extra_args.name:
                self.extra[value] = (value,)
            else:
                self.settings[name] = value
            return self._as(item, "taken", line, _IN_OTHER_WORDS)
        value = rule.values.get(item.value, item.value)
        if item.value in rule.values and not value:
            return self._as(item, "taken", rule.setting, "as the plan has it")
        found = next(one for one in Settings.fields() if one.name == rule.setting)
        number = self._number(value, rule)
        row = self._set(item, found, number)
        shared = rule.per and number != value and row.fate == "taken"
        return replace(row, why="theirs is for all sequences together") if shared else row

    def _by_role(self, item: RecipeItem, role: str) -> Translated:
        read = {
            "model": self._model,
            "drafter": self._drafter,
            "file": self._file,
            "served": self._served,
            "port": self._port,
            "quantization": self._quantization,
            "image": self._image,
            "publish": self._published,
            "mount": self._mount,
        }
        return read[role](item)

    def _served(self, item: RecipeItem) -> Translated:
        return self._set(item, Settings.served_model_name, " ".join(re.findall(r"[^\s,]+", item.value)))

    def _number(self, value: str, rule: ForeignRule) -> str:
        """A number as the setting counts it."""
        if rule.human and (found := re.fullmatch(r"([0-9.]+)([kKmMgG])", value)):
            return str(int(float(found[1]) * _UNITS[found[2]]))
        if not value.isascii() or not value.isdigit():
            return value
        shares = next((self.written[name] for name in rule.per if name in self.written), "1")
        drafting = any(self.rules.arguments.get(name, ForeignRule()).role == "drafter" for name in self.written)
        divided = int(value) // max(int(shares) if shares.isdigit() else 1, 1) // (rule.shared if drafting else 1)
        return str(divided + rule.add)

    def _set(self, item: RecipeItem, setting: Field[Any], value: str) -> Translated:
        """A setting with their value, if it is a valid one."""
        value = value or ("on" if setting.kind.__name__ == "switch" else "")
        if setting in (Settings.attention_backend, Settings.dflash_attention_backend):
            # the engines read it in any case, and rules compare it
            value = next((one.name for one in self.release.attention if one.name.lower() == value.lower()), value)
        if not self.release.kind.knows(setting) or setting.internal:
            return self._as(item, "not-taken", "", f"{self.release.title} has no such setting")
        try:
            setting.read({setting.name: value})
        except Refused as problem:
            return self._as(item, "not-taken", setting.name, problem.message)
        before = self.settings.get(setting.name)
        if before is not None and before != value:
            why = "an earlier line of the recipe has another value"
            return self._as(item, "changed", f"{setting.name}={before}", why)
        if not value:
            return self._as(item, "taken", setting.name, "empty: the plan chooses")
        if why := self._refused(setting.name, value):
            return self._as(item, "dangerous", "", why)
        self.settings[setting.name] = value
        why = _IN_OTHER_WORDS if value != item.value and item.value else ""
        return self._as(item, "taken", f"{setting.name}={value}", why)

    def _refused(self, name: str, value: str) -> str:
        """Why a stranger may not set this; empty if the value is harmless, or the release's own."""
        if value in {base.tag for base in self.release.base_images.values()}:
            return ""
        return container_rules().refuses(name, value)

    def _port(self, item: RecipeItem) -> Translated:
        if self.recipe.contained and self.publishes:
            return self._as(item, "changed", Settings.dflash_port.name, "the port inside the container")
        return self._set(item, Settings.dflash_port, item.value)

    def _quantization(self, item: RecipeItem) -> Translated:
        if isinstance(self.pair, ModelPair) and self.pair.target.quantisation == "bf16":
            return self._set(item, Settings.quantization, item.value)
        return self._as(item, "changed", Settings.quantization.name, "the checkpoint's own config.json says it")

    def _model(self, item: RecipeItem) -> Translated:
        if not isinstance(self.pair, ModelPair):
            why = "another model is asked for" if item.value else "it is empty: name the model with --model"
            try:
                self.catalog.pair(item.value)
            except UnknownPair as problem:
                why = f"{problem.message}: `dflash-deploy models list --all`" if item.value else why
            return self._as(item, "not-taken", "", why)
        own = self.pair.family.unknown
        why = "not in the catalog: read from its headers" if own else "weights are below --models-dir"
        file, (_, _, form) = self.pair.target.file, item.value.partition(":")
        if file and form and "/" not in form and form.lower() not in file.lower():
            why = f"the plan has another quantization: {file}"
        return self._as(item, "taken", f"{Settings.dflash_pair}={self.pair.name}", why)

    def _file(self, item: RecipeItem) -> Translated:
        file = self.pair.target.file if isinstance(self.pair, ModelPair) else None
        why = "the file of the plan's model" if file == item.value else f"the plan has {file or 'no such model'}"
        return self._as(item, "taken" if file == item.value else "changed", Settings.model_file.name, why)

    def _drafter(self, item: RecipeItem) -> Translated:
        if not isinstance(self.pair, ModelPair):
            why = self.drafts or "its model is not found, so nothing is planned"
            return self._as(item, "changed", Settings.dflash_drafter.name, why)
        own, pair = self.pair.drafter, self.pair.name
        if own.absent:
            why = "no DFlash draft model that fits: the plan has none (`init --drafter` names one)"
            return self._as(item, "changed", f"{Settings.dflash_drafter}=off", why)
        if _names(own, _place(item.value, self.recipe.mounts)):
            return self._as(item, "taken", Settings.dflash_drafter.name, f"the drafter of {pair}")
        why = f"the plan has the drafter of {pair}: {own.repo or own.bundled or own.path}"
        return self._as(item, "changed", Settings.dflash_drafter.name, why)

    def _image(self, item: RecipeItem) -> Translated:
        same = item.value in {base.tag for base in self.release.base_images.values()}
        why = "the base of the plan's image" if same else f"the plan has the image of {self.release.title}"
        return self._as(item, "taken" if same else "changed", Settings.dflash_base_image.name, why)

    def _mount(self, item: RecipeItem) -> Translated:
        if "docker.sock" in item.value:
            return self._as(item, "dangerous", "", "the container can start others, with all rights on the machine")
        return self._as(item, "not-taken", "", "weights are mounted from --models-dir, caches from the deployment")

    def _host(self, item: RecipeItem) -> Translated:
        bind = Settings.dflash_bind.name
        if self.recipe.contained:
            return self._as(item, "changed", bind, f"all addresses inside the container; outside it {bind}")
        if item.value in _EVERYWHERE:
            return self._as(item, "dangerous", f"{bind}=127.0.0.1", _OPEN)
        return self._set(item, Settings.dflash_bind, item.value)

    def _extra(self, item: RecipeItem) -> Translated:
        """An argument without a setting, if the release has it."""
        flag, title = item.name.partition(".")[0], self.release.title
        if not flag.startswith("-"):
            return self._as(item, "not-taken", "", "a word without an option")
        if self.known and flag not in self.known and not self.release.kind.reads_as(flag, self.known):
            near = "".join(f"; did you mean {one}?" for one in get_close_matches(flag, self.known, n=1))
            return self._as(item, "not-taken", "", f"{title} has no such option{near}")
        if "." in item.name and not self.rules.dotted:
            why = "one key of a JSON value whose others have settings: add it by hand"
            return self._as(item, "not-taken", Settings.extra_args.name, why)
        if why := self._placed(item):
            return self._as(item, "not-taken", "", why)
        words = (item.name, *(item.words or filter(None, [item.value])))
        if re.search(r"[\\\x00-\x1f\x7f]", written := _joined(words)) or {"'", "$"} <= set(written):
            return self._as(item, "not-taken", Settings.extra_args.name, ".env cannot hold its characters")
        self.extra[item.name] = words
        checked = "an option of" if self.known else "not checked: the options are not known of"
        return self._as(item, "taken", f"{Settings.extra_args}={written}", f"{checked} {title}")

    def _placed(self, item: RecipeItem) -> str:
        """Why a value has nothing to name here: a file or directory of the author's machine, mount or image."""
        if item.name in self.rules.routes or "://" in item.value:
            return ""
        if not (_PLACE.search(item.value) or _FILE.match(item.value)):
            return ""
        return "names a file or directory of theirs: mount yours in compose.override.yaml, then add it"

    def _variable(self, item: RecipeItem) -> Translated:
        if gone := self._gone(item.name):
            return self._renamed(item, gone)
        if rule := self.rules.variables.get(item.name) or container_rules().variables.get(item.name):
            return self._by_rule(item, rule)
        if item.name in setting_names(self.release.engine):
            return self._set(item, next(one for one in Settings.fields() if one.name == item.name), item.value)
        return self._passed_on(item)

    def _passed_on(self, item: RecipeItem) -> Translated:
        """A variable without a setting, if the engine or one of its libraries may read it."""
        read, own = self.catalog.variables.get(self.release.name, frozenset()), self.rules.own_variables
        if own and read and item.name.startswith(own) and item.name not in read:
            near = "".join(f"; did you mean {one}?" for one in get_close_matches(item.name, read, n=1, cutoff=0.8))
            return self._as(item, "not-taken", "", f"{self.release.title} does not read it{near}")
        if not item.value or not (passed_on(item.name) or (own and item.name.startswith(own))):
            why = "no variable of the engine, as far as is known" if item.value else "it is empty"
            return self._as(item, "not-taken", "", why)
        if why := self._refused(item.name, item.value):
            return self._as(item, "dangerous", "", why)
        if why := self._placed(item):
            return self._as(item, "not-taken", "", why)
        self.settings[item.name] = item.value
        known = f"{self.release.title} reads it"
        why = known if item.name in read else "a library of the engine may read it: not checked"
        return self._as(item, "taken", f"{item.name}={item.value}", why)

    def _option(self, item: RecipeItem) -> Translated:
        rule = container_rules().options.get(item.name)
        return self._by_rule(item, rule) if rule else self._as(item, "not-taken", "", "nothing here depends on it")

    def _published(self, item: RecipeItem) -> Translated:
        *address, outer, _ = ["", "", *item.value.rsplit(":", 2)][-3:] if ":" in item.value else ["", item.value, ""]
        if self.recipe.form.startswith("pod") or not outer.isdigit():
            return self._as(item, "not-taken", "", "the service of the cluster publishes the endpoint")
        if Settings.dflash_port.name in self.settings:
            return self._as(item, "not-taken", "", "one port is published")
        row = self._set(item, Settings.dflash_port, outer)
        bind = "".join(address).strip("[]")
        if bind and not self._refused(Settings.dflash_bind.name, bind):
            self.settings[Settings.dflash_bind.name] = bind
            return replace(row, ours=f"{row.ours} {Settings.dflash_bind}={bind}", why="")
        why = f"only the port is taken over: as written, {_OPEN}"
        return replace(row, fate="dangerous" if bind else "changed" if row.fate == "taken" else row.fate, why=why)

    def _command(self, item: RecipeItem) -> Translated:
        if danger := container_rules().danger(item.value):
            return self._as(item, "dangerous", "", f"never run: {danger}")
        if item.name == ELSEWHERE:
            return self._as(item, "not-taken", "", "the engine's arguments are in another file: take that over")
        why = {
            SECOND: "another engine: --service takes its name, if it has one; else pass it in a file of its own",
            READER: item.value,
            ADDED: "words that the recipe does not set: add them yourself",
        }
        return self._as(item, "not-taken", "", why.get(item.name, "another command: never run"))


def _joined(words: tuple[str, ...]) -> str:
    """Words as EXTRA_ARGS has them: in quotes only if it splits them otherwise."""
    return " ".join(shlex.quote(word) if re.search(r"[\s'\"\\]", word) or not word else word for word in words)
