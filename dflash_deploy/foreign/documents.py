"""Recipes in YAML: Compose files, pods of Kubernetes, Helm values, sparkrun, llama-swap, the configuration of vLLM."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dflash_deploy.foreign.command import MODEL_FLAGS, arguments_of, contained, engines_of_arguments, recipe_of_script
from dflash_deploy.foreign.items import ForeignRecipe, RecipeItem, RecipeRefused, ShellWord
from dflash_deploy.foreign.rules import container_rules, engine_rules
from dflash_deploy.foreign.shell import Script
from dflash_deploy.intake.parse import Invalid, parse_yaml
from dflash_deploy.serve.engines import ENGINES

# What Compose itself makes of a file, and what is said about the reading: `operations.foreign.composed`.
Compose = Callable[[str], tuple[Mapping[str, Any] | None, str]]

READER = "reader"  # name of the item that says how a file was read
_YAML = re.compile(r"^[\w.-]+\s*:", re.M)
# The key without which a text is not one of these forms; a wrong indentation in it is worth an error.
_OURS = re.compile(r"^(services|apiVersion|recipe_version|servingEngineSpec)\s*:", re.M)
_OWN_OF_POD = ("hostNetwork", "hostPID", "hostIPC", "initContainers", "nodeSelector", "tolerations", "runtimeClassName")


def recipes_of_yaml(text: str, compose: Compose | None = None) -> tuple[ForeignRecipe, ...]:
    """Every engine of a text in YAML, with the name that the file has for it. Raises RecipeRefused."""
    found: list[tuple[str, ForeignRecipe]] = []
    if not _YAML.search(text):
        return ()
    for part in re.split(r"^---\s*$", text, flags=re.M):
        try:
            document = parse_yaml(part)
        except Invalid as problem:
            # a script may have a line such as `services: x` in a here-document
            if _OURS.search(part) and "<<" not in text:
                raise RecipeRefused(f"the recipe {problem}", hint="check its indentation") from None
            continue
        if isinstance(document, dict):
            data = document.get("metadata")
            title = str(data.get("name") or "") if isinstance(data, dict) else ""
            found += ((title, one) for one in _of_document(document, text, compose))
    same = Counter(one.name for _, one in found)
    return tuple(replace(one, name=title) if title and same[one.name] > 1 else one for title, one in found)


def is_document(text: str) -> bool:
    """Whether a text is one mapping in YAML."""
    with suppress(Invalid):
        return isinstance(parse_yaml(text), dict)
    return False


def _of_document(document: Mapping[str, Any], text: str, compose: Compose | None) -> Iterator[ForeignRecipe]:
    lines = _Lines(text)
    command = next((key for key in document if str(key).startswith("command") and isinstance(document[key], str)), None)
    engine = next(
        (n for n, r in engine_rules().items() if r.runtime and str(document.get("runtime")).startswith(r.runtime)), ""
    )
    models, stack, image = document.get("models"), document.get("servingEngineSpec"), document.get("image")
    if isinstance(document.get("services"), dict):
        yield from _of_compose(document, text, lines, compose)
    elif "apiVersion" in document or "kind" in document or "modelArtifacts" in document:
        for around, pod in _pods(_model_service(document)):
            yield from _of_pod(pod, around, lines)
    elif isinstance(stack, dict) and isinstance(stack.get("modelSpec"), list):
        shared = {key: value for key, value in stack.items() if key != "modelSpec"}
        yield from (_of_values({**shared, **one}, lines) for one in stack["modelSpec"] if isinstance(one, dict))
    elif isinstance(image, dict) and isinstance(image.get("command"), list):
        # values of vLLM's own chart
        name = ":".join(str(image[key]) for key in ("repository", "tag") if key in image)
        yield from filter(None, [_of_service({**image, "image": name}, "pod", lines)])
    elif isinstance(models, dict) and any(isinstance(one, dict) and "cmd" in one for one in models.values()):
        yield from _of_swap(document, models, lines)
    elif command is not None and "models" not in document:
        yield from _of_template(document, command, lines)
    elif engine and isinstance(document.get("defaults"), dict):
        yield from _of_template({**document, "command": _command_of(engine, document["defaults"])}, "command", lines)
    else:
        yield from _of_configuration(document, lines)


class _Lines:
    """Finds the line of a text in a document: the parser keeps none."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def of(self, words: str) -> int:
        """The first line that has the text; 0 if none has."""
        return next((number for number, line in enumerate(self.lines, 1) if words and words in line), 0)


def _of_compose(
    document: Mapping[str, Any], text: str, lines: _Lines, compose: Compose | None
) -> Iterator[ForeignRecipe]:
    """The services with an engine, as Compose reads the file; the others are an item of each."""
    resolved, said = compose(text) if compose else (None, "")
    services = (resolved or document).get("services") or {}
    read = {
        str(name): _of_service(one, "Compose file", lines) for name, one in services.items() if isinstance(one, dict)
    }
    others = [name for name, found in read.items() if not found]
    if len(others) == len(read):
        said = "no service of the Compose file names an engine by its image, program or arguments"
        raise RecipeRefused(f"{said}: {', '.join(others)}", hint="paste the command that its container runs")
    note = [RecipeItem("command", READER, said, 0)] if said else []
    beside = [RecipeItem("container", "--service", ", ".join(others), lines.of(f"{others[0]}:"))] if others else []
    for name, found in read.items():
        if found:
            yield found.beside(*note, *beside, name=name)


def _model_service(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of llm-d's chart, which starts its engine with the model and the parallelism by `modelCommand`."""
    artifacts = values.get("modelArtifacts")
    if not isinstance(artifacts, dict):
        return values
    uri = str(artifacts.get("uri", ""))
    program = next(rules.programs[0] for rules in engine_rules().values() if rules.chart)
    command = [*program, str(artifacts.get("name", "")) if "{{" in uri else uri.removeprefix("hf://")]
    found = dict[str, Any]()
    for part in ("prefill", "decode"):
        pod = values.get(part)
        if isinstance(pod, dict) and pod.get("create", True) and isinstance(pod.get("containers"), list):
            tensor = (pod.get("parallelism") or {}).get("tensor", 1)
            started = [*command, "--tensor-parallel-size", str(tensor)]
            served = [one for one in pod["containers"] if isinstance(one, dict)]
            own = [{"command": started, **one, "name": part} if "modelCommand" in one else one for one in served]
            found[part] = {"replicas": pod.get("replicas"), "containers": own}
    return found


def _pods(node: object, around: Sequence[RecipeItem] = ()) -> Iterator[tuple[Sequence[RecipeItem], Mapping[str, Any]]]:
    """Each specification of a pod in a document, with what is around it."""
    if isinstance(node, dict):
        if isinstance(node.get("replicas"), int) and node["replicas"] != 1:
            around = (*around, RecipeItem("container", "--replicas", str(node["replicas"]), 0))
        if isinstance(node.get("containers"), list):
            yield around, node
            return
        if "image" in node and isinstance(node.get("args", node.get("command")), list):
            yield around, {"containers": [node]}
        elif re.search("huggingface|vllm", str(node.get("modelFormat")), re.I):
            yield around, {"containers": [_of_kserve(node)]}
            return
        for inner in node.values():
            yield from _pods(inner, around)
    elif isinstance(node, list):
        for inner in node:
            yield from _pods(inner, around)


def _of_kserve(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model of an InferenceService of KServe, whose runtime passes its arguments to vLLM."""
    named = {"--model_id": "--model", "--model_name": "--served-model-name"}
    args = model["args"] if isinstance(model.get("args"), list) else []
    words = (str(one).partition("=") for one in args)
    uri = [f"--model={model['storageUri'][5:]}"] if str(model.get("storageUri")).startswith("hf://") else []
    return {**model, "args": [*uri, *("".join((named.get(name, name), *given)) for name, *given in words)]}


def _of_pod(pod: Mapping[str, Any], around: Sequence[RecipeItem], lines: _Lines) -> Iterator[ForeignRecipe]:
    volumes = {str(one.get("name")): one.get("hostPath") for one in pod.get("volumes") or [] if isinstance(one, dict)}
    places = {name: of["path"] for name, of in volumes.items() if isinstance(of, dict) and of.get("path")}
    own = {k: pod[k] for k in _OWN_OF_POD if k in pod}
    containers = [one for one in pod["containers"] if isinstance(one, dict)]
    for container in containers:
        mounts = [one for one in container.get("volumeMounts") or [] if isinstance(one, dict)]
        named = [{**one, "name": places.get(str(one.get("name")), one.get("name"))} for one in mounts]
        whole = {**container, **({"volumeMounts": named} if named else {}), **own}
        if found := _of_service(whole, "pod", lines):
            others = ", ".join(str(one.get("name", "")) for one in containers if one is not container)
            beside = [RecipeItem("container", "--service", others, 0)] if others else []
            yield found.beside(*around, *beside, name=str(container.get("name", "")))


def _of_service(service: Mapping[str, Any], form: str, lines: _Lines) -> ForeignRecipe | None:
    kubernetes = form == "pod"
    script = Script()
    first, then = ("command", "args") if kubernetes else ("entrypoint", "command")
    words = [word for key in (first, then) for word in _words(service.get(key), script, lines, lines.of(f"{key}:"))]
    image = script.text(str(service.get("image", "")))
    used = (first, then, "image", "name", "environment", "env")
    left = ((key, value) for key, value in service.items() if key not in used and value is not None)
    options = [item for key, value in left for item in _options(key, value, script, lines)]
    if image.text:
        options.append(RecipeItem("container", "--image", image.text, lines.of("image:"), image.unset))
    variables = _variables(service.get("env" if kubernetes else "environment"), script, lines)
    found = contained(image.text, words, options, script, 0, form)
    if found is None and not image.text and (engines := engines_of_arguments(words, least=1)):
        # an image that is built, or that another file names
        inner = ForeignRecipe(form, engines, contained=True, items=tuple(arguments_of(words, engines)))
        found = inner.beside(*options, form=form)
    return found.beside(*variables) if found else None


def _options(key: str, value: object, script: Script, lines: _Lines) -> Iterator[RecipeItem]:
    """A key as options of `docker run`: one for each entry of a list."""
    name = container_rules().keys.get(key, f"--{key.replace('_', '-')}")
    if key in ("hostNetwork", "hostPID", "hostIPC"):
        value = "host" if value is True else value
    for entry in value if isinstance(value, list) else [value]:
        written = entry if isinstance(entry, str) else json.dumps(entry)
        if key == "ports" and isinstance(entry, dict):
            address = f"{entry['host_ip']}:" if entry.get("host_ip") else ""
            written = f"{address}{entry.get('published', entry.get('containerPort', ''))}:{entry.get('target', '')}"
        if key in ("volumes", "volumeMounts") and isinstance(entry, dict):
            written = f"{entry.get('source', entry.get('name', ''))}:{entry.get('target', entry.get('mountPath', ''))}"
        word = script.text(written)
        line = lines.of(written) if isinstance(value, list) else 0
        yield RecipeItem("container", name, word.text, line or lines.of(f"{key}:"), word.unset)


def _variables(written: object, script: Script, lines: _Lines) -> Iterator[RecipeItem]:
    """Variables of a service: a mapping, a list of NAME=VALUE, or the entries of a pod."""
    if isinstance(written, dict):
        written = [{"name": name, "value": "" if value is None else value} for name, value in written.items()]
    for entry in written if isinstance(written, list) else ():
        if isinstance(entry, dict):
            name, value = str(entry.get("name", "")), entry.get("value")
        else:
            name, given, text = str(entry).partition("=")
            value = text if given else None
        word = ShellWord("", 0, f"${name}") if value is None else script.text(_scalar(value))
        yield RecipeItem("variable", name, word.text, lines.of(name), word.unset)


def _left(values: Mapping[str, Any], used: Container[str], lines: _Lines, before: str = "") -> Iterator[RecipeItem]:
    """The keys that a reader does not use, as options of the container."""
    for key, value in values.items():
        if key not in used:
            yield RecipeItem("container", f"{before}{key}", _scalar(value), lines.of(f"{key}:"))


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _words(written: object, script: Script, lines: _Lines, start: int) -> list[ShellWord]:
    """The words of a command: a list as it is, a text split as a shell does."""
    if isinstance(written, str):
        filled = script.text(written).text
        commands = list(script.commands(re.sub(r"\\?\n", " ", filled), start))
        return [word for command in commands for word in command.words]
    entries = written if isinstance(written, list) else []
    words = (script.text(_scalar(entry)) for entry in entries)
    return [ShellWord(w.text, lines.of(str(e)) or start, w.unset) for w, e in zip(words, entries, strict=True)]


def _of_values(values: Mapping[str, Any], lines: _Lines) -> ForeignRecipe:
    """A model of the Helm chart of vLLM's production-stack."""
    engines = tuple(name for name, rules in engine_rules().items() if rules.chart)
    config = values.get("vllmConfig") or {}
    extra = [str(word) for word in config.get("extraArgs") or []]
    words = ["--model", str(values.get("modelURL", "")), *_flags({k: v for k, v in config.items() if k != "extraArgs"})]
    items = tuple(arguments_of([ShellWord(word, lines.of(word)) for word in [*words, *extra]], engines))
    image = ":".join(str(values[key]) for key in ("repository", "tag") if key in values)
    renamed = {_option_of(key): v for key, v in values.items() if (key, v) != ("replicaCount", 1)}
    used = {_option_of(key) for key in ("name", "modelURL", "vllmConfig", "repository", "tag", "env")}
    beside = [*_left(renamed, used, lines)]
    beside += [RecipeItem("container", "--image", image, lines.of("tag:"))] if image else []
    found = ForeignRecipe("Helm values", engines, image, contained=True, items=items, name=str(values.get("name", "")))
    return found.beside(*beside, *_variables(values.get("env"), Script(), lines))


def _option_of(key: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", str(key)).lower().replace("_", "-")
    return "--replicas" if name == "replica-count" else f"--{name}"


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys and values as arguments; `false` is left out."""
    for key, value in values.items():
        flag = _option_of(key)
        if value is True:
            yield flag
        elif isinstance(value, list):
            yield from (flag, *map(_scalar, value))
        elif value is not False and value is not None:
            yield from (flag, _scalar(value))


def _of_swap(document: Mapping[str, Any], models: Mapping[str, Any], lines: _Lines) -> Iterator[ForeignRecipe]:
    """The models of llama-swap: a command each, with macros; clients use the model's key as its name."""
    for key, model in models.items():
        if not isinstance(model, dict) or not isinstance(model.get("cmd"), str):
            continue
        macros = {**(document.get("macros") or {}), **(model.get("macros") or {}), "MODEL_ID": key}
        text = re.sub(r"\$\{env\.(\w+)\}", r"${\1}", model["cmd"])
        for _ in range(4):
            # macros may name macros
            text = re.sub(r"\$\{([\w-]+)\}", lambda at: _scalar(macros.get(at[1], at[0])), text)  # noqa: B023 - used at once
        read = recipe_of_script(" ".join(text.replace("\\\n", "\n").split("\n")), Script(), lines.of(f"{key}:") + 1)
        if read is None:
            continue
        served = next(flag for flag, rule in engine_rules()[read.engines[0]].arguments.items() if rule.role == "served")
        named = [item for item in read.items if item.name not in (served, "-a", "--port")]
        beside = [RecipeItem("argument", served, str(key), lines.of(f"{key}:"))]
        beside += _variables(model.get("env"), Script(), lines)
        others = [name for name in (*document, *model) if name not in ("cmd", "models", "macros", "env")]
        rest = [RecipeItem("container", "llama-swap", ", ".join(map(str, others)), 0)] if others else []
        yield replace(read, items=tuple(named)).beside(*rest, *beside, form="llama-swap", name=str(key))


def _of_configuration(document: Mapping[str, Any], lines: _Lines) -> Iterator[ForeignRecipe]:
    """The file of `vllm serve --config` and of SGLang's: keys are options."""
    words = [ShellWord(word, 0) for word in _flags(document)]
    engines = engines_of_arguments([ShellWord("a/b", 0), *words]) or engines_of_arguments(words, least=1)
    if engines:
        items = arguments_of(words, engines)
        numbered = tuple(replace(one, line=lines.of(one.name.removeprefix("--").partition(".")[0])) for one in items)
        yield ForeignRecipe("configuration of the engine", engines, items=numbered)


def _of_template(document: Mapping[str, Any], key: str, lines: _Lines) -> Iterator[ForeignRecipe]:
    """A recipe of sparkrun or spark-vllm-docker: a command with {names}, whose values are among its defaults."""
    defaults = document.get("defaults")
    values = {"model": document.get("model", ""), **(defaults if isinstance(defaults, dict) else {})}
    written = str(document[key])
    filled = {"{{": "{", "}}": "}", **{f"{{{name}}}": _scalar(value) for name, value in values.items()}}
    text = re.sub(r"\{\{|\}\}|\{\w+\}", lambda found: filled.get(found[0], f"${found[0]}"), written)
    start = lines.of(written.strip().splitlines()[0]) if written.strip() else 1
    found = recipe_of_script(text, Script(), start or 1)
    if found is None:
        return
    image = RecipeItem("container", "--image", str(document.get("container", "")), lines.of("container:"))
    variables = _variables(document.get("env"), Script(), lines)
    others = _left(document, {"model", "defaults", "env", "container", "command", key}, lines)
    unused = _left(values, {"model", *re.findall(r"\{(\w+)\}", written)}, lines, "defaults.")
    repository = str(document.get("model") or "")
    local = {item for item in found.items if item.name in MODEL_FLAGS and item.value.startswith(("/", "$", "~"))}
    named = (
        replace(item, value=repository, unset="") if repository and item in local else item for item in found.items
    )
    found = replace(found, items=tuple(named)).beside(*others, *unused, image, *variables, form="recipe of sparkrun")
    yield replace(found, image=image.value)


def _command_of(engine: str, defaults: Mapping[str, Any]) -> str:
    """The command that sparkrun makes of a recipe without one: an argument for each of its defaults."""
    reserved, names = ENGINES[engine].reserved_flags, container_rules().sparkrun
    rules = engine_rules()[engine]
    words = [*rules.programs[0], next(f for f, r in rules.arguments.items() if r.role == "model"), "{model}"]
    for name, value in defaults.items():
        own = (flag for flag, of in reserved.items() if [one.name for one in of.fields] == [names.get(name)])
        flag = next(own, f"--{name.replace('_', '-')}")
        words += [] if value is False else [flag] if value is True else [flag, f'"{{{name}}}"']
    return " ".join(words)
