"""The command of a recipe that starts an engine: through wrappers such as `sudo`, `docker run` and `bash -c`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePosixPath

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.foreign.items import ForeignRecipe, HasLogic, RecipeItem, RecipeRefused, ShellWord
from dflash_deploy.foreign.rules import EngineRules, container_rules, engine_rules
from dflash_deploy.foreign.shell import ASSIGNMENT, Script, ShellCommand, one_word, tidied
from dflash_deploy.intake.parse import Invalid, parse_json
from dflash_deploy.serve.engines import DEFAULT, ENGINES

FLAG = re.compile(r"-{1,2}[A-Za-z]")
_PAIRS = re.compile(r"[a-z_]+=\d+(,[a-z_]+=\d+)*")  # JSON as vLLM took it before 0.9: image=4,video=0
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "apptainer", "singularity"})
_OWN_RUN = frozenset({"run", "exec", "create"})
_IMAGE = re.compile(r"(?:[\w.-]+/)+[\w.-]+:[\w.-]+")
# Names of variables with arguments
_ARGUMENTS = re.compile(r"(?i)(^|_)(args?|arguments|extra|opts|options|flags|params)(_|$)")
# A value of several words without quotes, as `.env` may have it and a shell does not.
_BARE = re.compile(r"[^'\"#$()]*\s[^'\"#$()]*$")
_PROGRAM = re.compile(r"[A-Za-z_][\w./-]*")
MODEL_FLAGS = ("--model", "--model-path", "-m", "-hf", "--hf-repo")
_DEEPEST = 4
_DRY_RUN = "paste the command that it ends in, or let it run against recorders: --dry-run-script"

# Names of items: the command of a second engine, the command of a container that is in another file, and words that
# the caller of the script adds.
SECOND, ELSEWHERE, ADDED = "another engine", "another file", "words of yours"


def recipe_of_script(text: str, script: Script | None = None, line: int = 1, level: int = 0) -> ForeignRecipe | None:
    """The first command of a script that starts an engine; `None` if none does. All else that it runs is an item.

    Raises RecipeRefused if the text cannot be split into words, and HasLogic if a condition decides about the command.
    """
    script = script or Script()
    found: ForeignRecipe | None = None
    started: ShellCommand | None = None
    exports, beside = list[RecipeItem](), list[RecipeItem]()
    for command in script.commands(tidied(text) if level == 0 else text, line):
        exports += [_variable(name, word) for name, word in command.exports]
        read = _engine_command(command, script, level)
        given = [item.name for item in found.items] if found else []
        if read and (not given or ELSEWHERE in given):
            if command.logic:
                said = f"line {command.words[0].line}: `{command.logic}` decides what this script starts"
                raise HasLogic(said, hint=_DRY_RUN)
            beside += _other_command(started) if started else ()
            found, started = read, command
        elif read is None:
            beside += _other_command(command)
        else:
            text_of = " ".join(word.text for word in command.words)
            beside.append(RecipeItem("command", SECOND, text_of, command.words[0].line))
    lines = {item.line for item in found.items} if found else set(script.broken)
    if script.broken and lines & set(script.broken) and (found or _names_engine(text)):
        raise RecipeRefused(
            f"line {min(script.broken)}: a quote or bracket is opened and never closed", hint="copy the whole command"
        )
    return found.beside(*exports, *_grouped(beside)) if found else None


def _names_engine(text: str) -> bool:
    return any(" ".join(program) in text for rules in engine_rules().values() for program in rules.programs)


def _grouped(items: Sequence[RecipeItem]) -> Iterator[RecipeItem]:
    """Commands beside the engine's: each dangerous one, the others by their first word."""
    seen: dict[str, list[RecipeItem]] = {}
    for item in items:
        if item.kind != "command" or item.name == SECOND or container_rules().danger(item.value):
            yield item
        else:
            seen.setdefault(item.name if _PROGRAM.fullmatch(item.name) else "condition", []).append(item)
    for name, same in seen.items():
        times = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        yield replace(same[0], name=name, value=f"{same[0].value}{times}")


def variables_of(text: str) -> ForeignRecipe | None:
    """A file with only variables, as `.env` is; `None` if it has anything else."""
    stripped = (line.strip().removeprefix("export ").lstrip() for line in text.splitlines())
    lines = [(number, line) for number, line in enumerate(stripped, 1) if line and not line.startswith("#")]
    if not lines or not ASSIGNMENT.match(lines[0][1]):
        return None
    bare = all(ASSIGNMENT.match(line) for _, line in lines)
    if bare and not re.search(r"=\s*\(\s*$", text, re.M):
        cut = ((number, line.partition("=")) for number, line in lines)
        quoted = {
            number: parts
            for number, parts in cut
            if _BARE.match(parts[2]) and not re.search(r"\s\w+=", parts[2]) and not _names_engine(parts[2])
        }
        whole = dict(lines) | {number: f"{name}='{value}'" for number, (name, _, value) in quoted.items()}
        text = "\n".join(whole.get(number, "") for number in range(1, len(text.splitlines()) + 1))
    script = Script()
    commands = list(script.commands(text))
    if script.broken or script.undecided or any(command.words for command in commands):
        return None
    items = tuple(_variable(name, one_word(of, of[0].line, " ")) for name, of in script.variables.items() if of)
    return ForeignRecipe("variables", items=items) if items else None


def _other_command(command: ShellCommand) -> Iterator[RecipeItem]:
    if command.words:
        value = " ".join(word.text for word in command.words)
        yield RecipeItem("command", command.words[0].text, value, command.words[0].line)
        yield from (_variable(name, word) for name, word in command.variables)


def _variable(name: str, word: ShellWord) -> RecipeItem:
    return RecipeItem("variable", name, word.text, word.line, word.unset)


def _engine_command(command: ShellCommand, script: Script, level: int) -> ForeignRecipe | None:
    found = recipe_of_words(command.words, script, level) if command.words else None
    added = [RecipeItem("command", ADDED, words, command.words[0].line) for words in command.missing]
    return found.beside(*added, *(_variable(name, word) for name, word in command.variables)) if found else None


def recipe_of_words(words: Sequence[ShellWord], script: Script, level: int = 0) -> ForeignRecipe | None:
    """What a command starts; `None` if it starts another program than an engine. Raises RecipeRefused."""
    if level > _DEEPEST:
        raise RecipeRefused(f"line {words[0].line}: commands are nested too deep", hint="pass the inner command")
    words, variables = _without_wrappers(words)
    texts = [word.text for word in words]
    found: ForeignRecipe | None = None
    if texts[:1] and PurePosixPath(texts[0]).name in _CONTAINERS:
        found = _of_container(words, script, level)
    elif len(texts) > 2 and _is_shell(texts):
        given = tuple(words[4:])
        inner = Script({**script.variables, "@": given, "*": given}, dict(script.undecided))
        found = recipe_of_script(texts[2], inner, words[2].line, level + 1)
    elif _in_last_word(texts):
        found = recipe_of_script(texts[-1], Script(dict(script.variables)), words[-1].line, level + 1)
    else:
        engines, length = started_by(words)
        if engines:
            found = ForeignRecipe("command", engines, items=tuple(arguments_of(words[length:], engines)))
        elif len(texts) > 1 and _IMAGE.fullmatch(texts[0]) and _arguments_only(words[1:]):
            # pages show what follows `docker run` without it
            image = RecipeItem("container", "--image", texts[0], words[0].line)
            found = contained(texts[0], list(words[1:]), [image], script, level, form="image")
    return found.beside(*variables) if found else None


def _in_last_word(texts: Sequence[str]) -> bool:
    """Whether the last word is the command, as with `ssh HOST 'COMMAND'`."""
    return len(texts) > 1 and " " in texts[-1] and PurePosixPath(texts[0]).name in container_rules().remote.split()


def _is_shell(texts: Sequence[str]) -> bool:
    return PurePosixPath(texts[0]).name in ("bash", "sh") and re.fullmatch(r"-\w*c", texts[1]) is not None


def _without_wrappers(words: Sequence[ShellWord]) -> tuple[Sequence[ShellWord], list[RecipeItem]]:
    """The command behind `sudo -E`, `timeout 3600` and the like, and the variables among them."""
    wrappers, texts = {*container_rules().prefixes.split(), *container_rules().remote.split()}, [w.text for w in words]
    at = 0
    while at < len(words) and ASSIGNMENT.match(texts[at]):
        at += 1
    if at < len(words) and PurePosixPath(texts[at]).name in wrappers and not _in_last_word(texts[at:]):
        ends = next((n for n in range(at, len(words)) if texts[n] in container_rules().beside.split()), len(words))
        at = next((n for n in range(at + 1, ends) if _begins(words[n : n + 4])), at)
    found = ((word, ASSIGNMENT.search(word.text)) for word in words[:at])
    variables = [
        _variable(name[1], replace(word, text=word.text[name.end() :]))
        for word, name in found
        if name and word.text[: name.start()] in ("", "--setenv=")
    ]
    return words[at:], variables


def _begins(words: Sequence[ShellWord]) -> bool:
    texts = [word.text for word in words]
    first = PurePosixPath(texts[0]).name
    return (
        bool(started_by(words)[0]) or (len(texts) > 1 and first in _CONTAINERS) or (len(texts) > 2 and _is_shell(texts))
    )


def started_by(words: Sequence[ShellWord]) -> tuple[tuple[str, ...], int]:
    """The engines that a command may start, and how many words name the program."""
    texts = [word.text for word in words]
    if texts:
        name = PurePosixPath(texts[0].replace("\\", "/")).name.removesuffix(".exe")
        texts[0] = "python" if re.fullmatch(r"python[0-9.]*", name) else name
    if texts[:1] == ["python"]:
        texts = [text for n, text in enumerate(texts) if n == 0 or text not in ("-u", "-O")]
    matching = [
        (engine, len(program))
        for engine, rules in engine_rules().items()
        for program in rules.programs
        if texts[: len(program)] == program
    ]
    dropped = len(words) - len(texts)
    return tuple(engine for engine, _ in matching), matching[0][1] + dropped if matching else 0


def _of_container(words: Sequence[ShellWord], script: Script, level: int) -> ForeignRecipe | None:
    """`docker run`, `docker exec`, `docker compose run` and `exec`: options, image or service, command."""
    at = next((number for number, word in enumerate(words[:6]) if word.text in _OWN_RUN), None)
    if at is None:
        return None
    whole = words[at].text in ("run", "create") and [word.text for word in words[1:at]] in ([], ["container"])
    options, rest = _container_options(words[at + 1 :])
    if not rest:
        return None
    image = rest[0].text if whole else ""
    entry = next((item.value for item in options if item.name == "--entrypoint"), "")
    inner = [*(ShellWord(word, rest[0].line) for word in entry.split()), *rest[1:]]
    if whole:
        options.append(RecipeItem("container", "--image", image, rest[0].line, rest[0].unset))
    # the name of a service or container tells the engine, if its command has arguments only
    found = contained(rest[0].text, inner, options, script, level, form=f"docker {words[at].text}")
    another = found and not whole and ELSEWHERE in [item.name for item in found.items]
    return None if another else found and replace(found, image=image)


def contained(
    image: str, words: Sequence[ShellWord], options: Sequence[RecipeItem], script: Script, level: int, form: str
) -> ForeignRecipe | None:
    """What a container with this command starts; arguments without a program go to the engine of the image.

    An image of an unknown name has the engine whose arguments it gets.
    """
    found = recipe_of_words(words, script, level + 1) if words else None
    if found is None:
        engines = _of_image(image) or engines_of_arguments(words)
        if not engines:
            return None
        starts = {"--server", *(one for program in engine_rules()[engines[0]].programs for one in program)}
        skipped = next((number for number, word in enumerate(words) if word.text not in starts), len(words))
        items = tuple(arguments_of(words[skipped:], engines))
        if words[skipped:] and not _arguments_only(words[skipped:]):
            items = (RecipeItem("command", ELSEWHERE, " ".join(word.text for word in words), words[0].line),)
        found = ForeignRecipe("", engines, items=items)
    mounts = dict(pair for item in options for pair in _mount(item))
    options = [one for item in options for one in _without_env(item)]
    return replace(found.beside(*options, form=form), image=image or found.image, contained=True, mounts=mounts)


def _of_image(image: str) -> tuple[str, ...]:
    """The engines whose image this is, by its name."""
    others = re.search(container_rules().beside_engines, image, re.I)
    serving = () if others else ((name, one.images) for name, one in engine_rules().items() if one.serves)
    return tuple(name for name, images in serving if images and re.search(images, image, re.I))


def engines_of_arguments(words: Sequence[ShellWord], least: int = 2) -> tuple[str, ...]:
    """The engine that has most of these options, if the words name a model and at least `least` of its options."""
    flags = {_spelled(word.text.partition("=")[0]).partition(".")[0] for word in words if FLAG.match(word.text)}
    if not words or not (flags & set(MODEL_FLAGS) or ("/" in words[0].text and " " not in words[0].text)):
        return ()
    known = {name: len(flags & _options_of(name)) for name, rules in engine_rules().items() if not rules.like}
    best = max(known, key=lambda name: (known[name], name == DEFAULT))
    alike = (name for name, rules in engine_rules().items() if rules.like == best)
    return (best, *alike) if known[best] >= least and known[best] * 2 > len(flags) else ()


def _options_of(engine: str) -> frozenset[str]:
    catalog = load_catalog()
    releases = [catalog.options.get(name, frozenset()) for name, one in catalog.engines.items() if one.engine == engine]
    renamed = (gone.old for one in catalog.engines.values() if one.engine == engine for gone in one.renamed)
    own = (*engine_rules()[engine].arguments, *ENGINES[engine].reserved_flags, *renamed)
    return frozenset(chain(own, *releases))


def _arguments_only(words: Sequence[ShellWord]) -> bool:
    """Whether words begin as arguments do: with a dash, or a model."""
    first = words[0].text
    program = re.search(r"\.(sh|py)$|(^|/)(ba|z|da)?sh$|(^|/)python[\d.]*$", first)
    return bool(FLAG.match(first)) or ("/" in first and not program)


def _mount(item: RecipeItem) -> Iterator[tuple[str, str]]:
    if item.name == "--volume" and len(parts := item.value.split(":")) > 1:
        outer, inner = parts[:2]
    elif item.name == "--mount":
        fields = dict(part.partition("=")[::2] for part in item.value.split(","))
        inner = fields.get("target") or fields.get("dst") or fields.get("destination") or ""
        outer = fields.get("source") or fields.get("src") or ""
    else:
        return
    # named volumes have no directory of their own
    if inner and outer[:1] in tuple("/.~$"):
        yield inner.rstrip("/"), outer


def _without_env(item: RecipeItem) -> Iterator[RecipeItem]:
    """An option; `--env NAME=VALUE` as the variable."""
    if item.name != "--env":
        yield item
        return
    name, given, value = item.value.partition("=")
    yield RecipeItem("variable", name, value, item.line, item.unset if given else f"${name}")


def _container_options(words: Sequence[ShellWord]) -> tuple[list[RecipeItem], Sequence[ShellWord]]:
    """The options before the image, and the words from the image on."""
    switches = container_rules().switches.split()
    options: list[RecipeItem] = []
    while words and (words[0].text.startswith("-") or _is_options(words)) and words[0].text != "--":
        name, given, value = words[0].text.partition("=")
        unset, taken = words[0].unset, 1
        if words[0].open:
            options.append(RecipeItem("command", ADDED, words[0].text, words[0].line))
            words = words[1:]
            continue
        if len(name) > 2 and name[:2] in ("-e", "-v", "-p"):
            # -e NAME=VALUE in one word
            name, given, value = name[:2], "=", words[0].text[2:]
        if not given and name not in switches and len(words) > 1 and not FLAG.match(words[1].text):
            value, unset, taken = words[1].text, words[1].unset, 2
        options.append(RecipeItem("container", container_rules().short.get(name, name), value, words[0].line, unset))
        words = words[taken:]
    return options, words


def _is_options(words: Sequence[ShellWord]) -> bool:
    """Whether the first word is a variable with options, and not the image: an image or another option follows."""
    follows = words[1] if len(words) > 1 else None
    if not words[0].open or follows is None:
        return False
    return (
        follows.open
        or _IMAGE.fullmatch(follows.text) is not None
        or follows.text in {*container_rules().short, *container_rules().options}
    )


def arguments_of(words: Sequence[ShellWord], engines: Sequence[str]) -> Iterator[RecipeItem]:
    """Arguments with their values. A JSON object becomes one item for each key, if the engine or a rule knows keys."""
    rules = engine_rules()[engines[0]]
    flag, line, values = rules.positional, words[0].line if words else 0, list[ShellWord]()
    for word in words:
        name, given, value = word.text.partition("=")
        added = word.open or (word.text[:1], word.text[-1:]) == ("<", ">")
        if added and (values or _ARGUMENTS.search(word.unset.strip("${}"))):
            # a variable or placeholder that may be further options
            yield RecipeItem("command", ADDED, word.text, word.line)
            continue
        if not FLAG.match(name) or " " in name:
            values.append(word)
            continue
        if values or flag != rules.positional:
            yield from _argument(flag, values, line, rules)
        flag, line = _spelled(name), word.line
        values = [replace(word, text=value)] if given else []
    if values or (words and flag != rules.positional):
        yield from _argument(flag, values, line, rules)


def _spelled(flag: str) -> str:
    """The engines' parsers take --api_key for --api-key; keys after a dot are as they are."""
    head, dot, key = flag.partition(".")
    return f"{head.replace('_', '-')}{dot}{key}" if head.startswith("--") else flag


def _argument(flag: str, values: Sequence[ShellWord], line: int, rules: EngineRules) -> Iterator[RecipeItem]:
    texts = [word.text for word in values]
    unset = next((word.unset for word in values if word.unset), "")
    value = " ".join(texts)
    if value.startswith("{") and not unset:
        try:
            document = parse_json(value)
        except Invalid:
            document = None
        leaves = list(_leaves(flag, document)) if isinstance(document, dict) and document else []
        if leaves and (rules.dotted or any(name in rules.arguments for name, _ in leaves)):
            yield from (RecipeItem("argument", name, leaf, line) for name, leaf in leaves)
            return
    if _PAIRS.fullmatch(value) and flag.startswith("--limit-mm"):
        for pair in value.split(","):
            key, _, number = pair.partition("=")
            yield RecipeItem("argument", f"{flag}.{key}", number, line)
        return
    yield RecipeItem("argument", flag or "(words)", value, line, unset, words=tuple(texts) if texts[1:] else ())


def _leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
