"""Compose files, recipes of sparkrun and spark-vllm-docker, pods of Kubernetes: as the command that they start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dflash_deploy.foreign.command import SECOND, contained, recipe_of_script, variables_of, written_variables
from dflash_deploy.foreign.items import ForeignRecipe, RecipeItem, RecipeRefused, ShellWord
from dflash_deploy.foreign.rules import SPARKRUN, engine_rules
from dflash_deploy.foreign.shell import Script
from dflash_deploy.intake.parse import Invalid, parse_yaml
from dflash_deploy.serve.engines import ENGINES

MOST_CHARACTERS = 2**20  # characters of a recipe
_YAML = re.compile(r"^(services|apiVersion|kind|recipe_version|command\w*|runtime|container|defaults)\s*:", re.M)
_HINT = "a command such as `vllm serve`, a script, a Compose file, an .env, a sparkrun recipe or a pod of Kubernetes"
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
# Keys of Compose files and pods that are options of `docker run`; all others have their name, with dashes.
_OPTIONS = {
    "container_name": "--name",
    "network_mode": "--network",
    "ports": "--publish",
    "volumes": "--volume",
    "mem_limit": "--memory",
    "working_dir": "--workdir",
    "devices": "--device",
    "labels": "--label",
    "ulimits": "--ulimit",
    "hostNetwork": "--network",
    "hostPID": "--pid",
    "hostIPC": "--ipc",
    "resources": "--gpus",
    "volumeMounts": "--volume",
    "imagePullPolicy": "--restart",
    **dict.fromkeys(_PROBES, "--healthcheck"),
}


def read_recipe(text: str) -> ForeignRecipe:
    """What a text starts, in any of the known forms. Raises RecipeRefused if it is too large or starts no engine."""
    if len(text) > MOST_CHARACTERS:
        raise RecipeRefused(
            f"the recipe is too large: {len(text)} characters (limit: {MOST_CHARACTERS})",
            hint="check that it is the right file",
        )
    if "\0" in text:
        raise RecipeRefused("the recipe has a NUL: it is not a text", hint="check that it is the right file")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found = _of_yaml(text) if _YAML.search(text) else None
    found = found or recipe_of_script(text) or variables_of(text) or written_variables(text)
    if found is None:
        raise RecipeRefused("the recipe starts no engine: vLLM, SGLang or llama-server", hint=_HINT)
    return found


def _of_yaml(text: str) -> ForeignRecipe | None:
    """The first document with an engine; the engines of others are items."""
    found: list[ForeignRecipe] = []
    for part in re.split(r"^---\s*$", text, flags=re.M):
        try:
            document = parse_yaml(part)
        except Invalid as problem:
            # a script may have a line such as `command: x` in a here-document
            if re.search(r"^(services|apiVersion|recipe_version)\s*:", part, re.M) and "<<" not in part:
                raise RecipeRefused(f"the recipe {problem}", hint="check its indentation") from None
            continue
        if isinstance(document, dict) and (read := _of_document(document, text)):
            found.append(read)
    return (
        found[0].beside(*(RecipeItem("command", SECOND, one.image or one.form, 0) for one in found[1:]))
        if found
        else None
    )


def _of_document(document: Mapping[str, Any], text: str) -> ForeignRecipe | None:
    lines = _Lines(text)
    if isinstance(services := document.get("services"), dict):
        return _of_services(services, "Compose file", lines)
    command = next((key for key in document if key.startswith("command") and isinstance(document[key], str)), None)
    if command is not None:
        return _of_template(document, command, lines)
    engine = next(
        (n for n, r in engine_rules().items() if r.runtime and str(document.get("runtime")).startswith(r.runtime)), ""
    )
    if engine and isinstance(document.get("defaults"), dict):
        return _of_template({**document, "command": _command_of(engine, document["defaults"])}, "command", lines)
    for pod in _pods(document):
        containers = {str(one.get("name")): one for one in pod["containers"] if isinstance(one, dict)}
        around = {key: value for key, value in pod.items() if key in ("hostNetwork", "hostPID", "hostIPC")}
        if found := _of_services({name: {**one, **around} for name, one in containers.items()}, "pod", lines):
            return found
    return None


def _pods(node: object) -> Iterator[Mapping[str, Any]]:
    """Each specification of a pod in a document."""
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield node
        for inner in node.values():
            yield from _pods(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _pods(inner)


class _Lines:
    """Finds the line of a text in a document: the parser keeps none."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def of(self, words: str) -> int:
        """The first line that has the text; 0 if none has."""
        return next((number for number, line in enumerate(self.lines, 1) if words and words in line), 0)


def _of_services(services: Mapping[str, Any], form: str, lines: _Lines) -> ForeignRecipe | None:
    """The first service with an engine; the others are items."""
    found: ForeignRecipe | None = None
    others: list[RecipeItem] = []
    for name, service in services.items():
        read = _of_service(service, form, lines) if isinstance(service, dict) else None
        if read and found is None:
            found = read
            continue
        line = lines.of(f"{name}:")
        second = RecipeItem("command", SECOND, str(name), line)
        others.append(second if read else RecipeItem("container", "--service", str(name), line))
    return found.beside(*others) if found else None


def _of_service(service: Mapping[str, Any], form: str, lines: _Lines) -> ForeignRecipe | None:
    kubernetes = form == "pod"
    script = Script()
    first, then = ("command", "args") if kubernetes else ("entrypoint", "command")
    words = [word for key in (first, then) for word in _words(service.get(key), script, lines, lines.of(f"{key}:"))]
    image = script.text(str(service.get("image", "")))
    left = {
        key: value for key, value in service.items() if key not in (first, then, "image", "name", "environment", "env")
    }
    options = [
        RecipeItem("container", name, word.text, word.line, word.unset)
        for key, value in left.items()
        for name, word in _options(key, value, script, lines)
    ]
    options.append(RecipeItem("container", "--image", image.text, lines.of("image:"), image.unset))
    variables = [
        RecipeItem("variable", name, word.text, lines.of(name), word.unset)
        for name, word in _environment(service.get("env" if kubernetes else "environment"), script)
    ]
    found = contained(image.text, words, options, script, 0, form)
    if found is None and not words and variables and form == "Compose file":
        # an image that is configured by variables
        found = contained(f"{image.text} vllm", [ShellWord("serve", 0)], options, script, 0, form)
    return found.beside(*variables) if found else None


def _options(key: str, value: object, script: Script, lines: _Lines) -> Iterator[tuple[str, ShellWord]]:
    """A key as options of `docker run`: one for each entry of a list."""
    name = _OPTIONS.get(key, f"--{key.replace('_', '-')}")
    if key in ("hostNetwork", "hostPID", "hostIPC"):
        value = "host" if value is True else value
    for entry in value if isinstance(value, list) else [value]:
        written = entry if isinstance(entry, str) else json.dumps(entry)
        if key == "ports" and isinstance(entry, dict):
            written = f"{entry.get('published', entry.get('containerPort', ''))}:{entry.get('target', '')}"
        if key in ("volumes", "volumeMounts") and isinstance(entry, dict):
            written = f"{entry.get('source', entry.get('name', ''))}:{entry.get('target', entry.get('mountPath', ''))}"
        word = script.text(written)
        line = lines.of(written) if isinstance(value, list) else 0
        yield name, ShellWord(word.text, line or lines.of(f"{key}:"), word.unset)


def _environment(written: object, script: Script) -> Iterator[tuple[str, ShellWord]]:
    """Variables of a service: a mapping, a list of NAME=VALUE, or the entries of a pod."""
    if isinstance(written, dict):
        for name, value in written.items():
            yield str(name), script.text("" if value is None else _scalar(value))
    for entry in written if isinstance(written, list) else []:
        if isinstance(entry, dict):
            name, value = str(entry.get("name", "")), entry.get("value")
            yield name, script.text(_scalar(value)) if value is not None else ShellWord("", 0, f"${name}")
        else:
            name, given, text = str(entry).partition("=")
            yield name, script.text(text) if given else ShellWord("", 0, f"${name}")


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _words(written: object, script: Script, lines: _Lines, start: int) -> list[ShellWord]:
    """The words of a command: a list as it is, a text split as a shell does."""
    if isinstance(written, str):
        filled = script.text(written).text
        commands = list(script.commands(filled.replace("\n", " "), start))
        return [word for command in commands for word in command.words]
    entries = written if isinstance(written, list) else []
    words = (script.text(_scalar(entry)) for entry in entries)
    return [ShellWord(w.text, lines.of(str(e)) or start, w.unset) for w, e in zip(words, entries, strict=True)]


def _of_template(document: Mapping[str, Any], key: str, lines: _Lines) -> ForeignRecipe | None:
    """A recipe of sparkrun or spark-vllm-docker: a command with {names}, whose values are among its defaults."""
    defaults = document.get("defaults")
    values = {"model": document.get("model", ""), **(defaults if isinstance(defaults, dict) else {})}
    written = str(document[key])
    text = re.sub(r"\{\{|\}\}|\{(\w+)\}", lambda found: _filled(found, values), written)
    start = lines.of(written.strip().splitlines()[0]) or 1
    found = recipe_of_script(text, Script(), start)
    if found is None:
        return None
    image = RecipeItem("container", "--image", str(document.get("container", "")), lines.of("container:"))
    variables = [
        RecipeItem("variable", name, word.text, lines.of(name), word.unset)
        for name, word in _environment(document.get("env"), Script())
    ]
    used = {"model", "defaults", "env", "container", "command", key}
    others = (
        RecipeItem("container", name, _scalar(document[name]), lines.of(f"{name}:"))
        for name in document
        if name not in used
    )
    unused = (
        RecipeItem("container", f"defaults.{name}", _scalar(value), lines.of(f"{name}:"))
        for name, value in (defaults.items() if isinstance(defaults, dict) else ())
        if f"{{{name}}}" not in written
    )
    found = found.beside(*others, *unused, image, *variables, form="recipe of sparkrun")
    return replace(found, image=image.value)


def _command_of(engine: str, defaults: Mapping[str, Any]) -> str:
    """The command that sparkrun makes of a recipe without one: an argument for each of its defaults."""
    reserved = ENGINES[engine].reserved_flags
    words = [
        *engine_rules()[engine].programs[0],
        next(f for f, r in engine_rules()[engine].arguments.items() if r.role == "model"),
        "{model}",
    ]
    for name, value in defaults.items():
        own = (flag for flag, of in reserved.items() if name in SPARKRUN and of.fields == (SPARKRUN[name],))
        flag = next(own, f"--{name.replace('_', '-')}")
        words += [] if value is False else [flag] if value is True else [flag, f'"{{{name}}}"']
    return " ".join(words)


def _filled(found: re.Match[str], values: Mapping[str, Any]) -> str:
    if found[1] is None:
        return found[0][0]
    return _scalar(values[found[1]]) if found[1] in values else f"${{{found[1]}}}"
