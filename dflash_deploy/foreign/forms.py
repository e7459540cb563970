"""The forms in which people publish how they start an engine: how each is recognised, and the reader that owns it."""

from __future__ import annotations

import configparser
import html
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import islice
from textwrap import dedent
from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.read import Entry, read_packaged
from dflash_deploy.foreign.command import SECOND, arguments_of, contained, recipe_of_script, variables_of
from dflash_deploy.foreign.documents import Compose, is_document, recipes_of_yaml
from dflash_deploy.foreign.items import ForeignRecipe, HasLogic, RecipeItem, RecipeRefused, SeveralEngines, ShellWord
from dflash_deploy.foreign.rules import container_rules, engine_rules
from dflash_deploy.foreign.shell import OPTION, Script, one_word
from dflash_deploy.intake.parse import Invalid, parse_json

MOST_CHARACTERS = 2**20  # characters of a recipe
_HINT = "paste the command that starts the engine, such as `vllm serve MODEL …`; `--help` has the forms that are read"
_FENCE = re.compile(r"^[ \t>]*(```+|~~~+)", re.M)
_MARK = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)")
_PRE = re.compile(r"<pre\b[^<>]*>", re.I)
_START = re.compile(
    r"^[ \t]*(?:\S+@\S+[$#] |[$>] |- `?|`)?((?:[A-Z_]+=\S+ )*(?:sudo |exec )?"
    r"(?:docker|podman|(?:\S*[/\\])?(?:vllm serve|python3? -m (?:vllm|sglang)|sglang serve|llama-server))\b.*)$", re.M
)  # fmt: skip
# An assignment of a batch file or PowerShell script that is not in a block, and what may be before and after a command.
_SET = re.compile(
    r'(?i)^(?:@?set[ \t]+("?)(?=\w+=)|(?:\[[\w.]+(?:\[\])?\])?\$\{?)(\w+)\}?'
    r"[ \t]*(\+?)=(?![ \t]*(?:Start-Process|&|@\())(.*)"
)
_JOINED = r'^"[^"]* && (\S*llama-server.*)"$|^[^"]* && (?=\S*llama-server)'  # also in the quotes of `cmd /k`
_EXPRESSION = re.compile(r"[ \t]*\(?(?:if\b|\w+-\w+[ \t]|\[|-\w|@\{)")  # of PowerShell: nothing is evaluated
_BEFORE = re.compile(
    r'(?i)^@?(?:start[ \t]+(?:"[^"]*"[ \t]+)?(?:/\w+[ \t]+)*)?(?:cmd(?:\.exe)?[ \t]+/[ck][ \t]+)?(?:call[ \t]+|&[ \t]*|'
    r"(?:\$\w+[ \t]*=[ \t]*)?Start-Process[ \t]+(?:-FilePath[ \t]+)?)?"
)
_AFTER = re.compile(
    r"(?i)[ \t]-(NoNewWindow|PassThru|Wait|WindowStyle|WorkingDirectory|Redirect\w+)\b.*|[ \t]-ArgumentList(?=[ \t])"
)
_POOLING = re.compile(r"(?i)^--(is-)?embeddings?$|^--rerank(ing)?$|^--(runner|task|convert)$")
_POOLS = re.compile(r"(?i)^(pooling|embed\w*|score|classify|reward|)$")

Reader = Callable[[str, Compose | None], Sequence[ForeignRecipe]]


class Form(Entry):
    """A form of forms.yaml."""

    name: str
    recognised: Annotated[re.Pattern[str], Field(description="expression that its texts match")]
    reader: Annotated[str, Field(description="its reader; empty if it is not read")] = ""
    instead: Annotated[str, Field(description="what to do if it is not read, or has no engine")] = ""


class Forms(Entry):
    """The file."""

    forms: list[Form]


def read_recipe(text: str, service: str = "", compose: Compose | None = None) -> ForeignRecipe:
    """What a text starts, in any of the known forms; of several engines the one that is named `service`.

    Raises RecipeRefused if it is too large or starts no engine, SeveralEngines if no service is named, and HasLogic.
    """
    large = len(text) > MOST_CHARACTERS
    if large or "\0" in text:
        said = f"is too large: {len(text)} characters (limit: {MOST_CHARACTERS})" if large else "has a NUL"
        raise RecipeRefused(f"the recipe {said}", hint="check that it is the right file")
    # what mails and comments quote of others
    text = re.sub(r"(?m)^(?:>[ \t]?){2,}", "", text.removeprefix("\ufeff").replace("\r\n", "\n"))
    return _chosen(_read(text, compose), service)


def _read(text: str, compose: Compose | None, *, within: bool = False) -> Sequence[ForeignRecipe]:
    """The engines of a text. A text `within` a page may be unknown to all readers."""
    for form in forms():
        if form.recognised.search(text):
            try:
                found = _READERS[form.reader](text, compose) if form.reader else ()
            except HasLogic as problem:
                if form.reader == "script" or within:
                    raise
                raise RecipeRefused(problem.message, hint="paste the command that it ends in") from None
            except RecipeRefused as problem:
                if not form.instead:
                    raise
                raise RecipeRefused(f"this is {form.name}: {problem.message}", hint=form.instead) from None
            if found:
                return found
            if form.instead and not within:
                said = "starts no engine: vLLM, SGLang or llama-server" if form.reader else "is not read"
                raise RecipeRefused(f"this is {form.name}, which {said}", hint=form.instead)
    if within:
        return ()
    raise RecipeRefused("the recipe starts no engine: vLLM, SGLang or llama-server", hint=_HINT)


def _chosen(found: Sequence[ForeignRecipe], service: str) -> ForeignRecipe:
    """The engine that is named, else the only one that generates text."""
    if service:
        named = next((one for one in found if one.name == service), None)
        if named is None:
            names = ", ".join(one.name for one in found if one.name) or "none with a name"
            raise RecipeRefused(f"the recipe has no service `{service}` with an engine", hint=f"its engines: {names}")
        return named
    # others serve embeddings or scores, and no text
    generating = [
        one for one in found if not any(_POOLING.match(item.name) and _POOLS.match(item.value) for item in one.items)
    ] or list(found)
    if len(generating) > 1:
        raise SeveralEngines([one.name for one in generating])
    chosen = generating[0]
    return chosen.beside(*(RecipeItem("command", SECOND, one.name, 0) for one in found if one is not chosen))


def _script(text: str, compose: Compose | None) -> Sequence[ForeignRecipe]:
    """A command or script; else the variables of an `.env`, or what a script writes to a file."""
    try:
        found = variables_of(text) or recipe_of_script(text) or _in_prose(text)
    except HasLogic:
        raise
    except RecipeRefused:
        # a text with an apostrophe may have a line that is a command, or be a document of another program
        if not (found := _in_prose(text)) and not is_document(text):
            raise
    if found:
        return (found,)
    blocks = _here_documents(text)
    variables = (variables_of("\n" * line + block) for line, block in blocks)
    return _of_blocks(blocks, compose) or tuple(islice(filter(None, variables), 1))


def _here_documents(text: str) -> list[tuple[int, str]]:
    """The files that a script writes with `cat > FILE << EOF`, with the lines that they begin at.

    The script's variables are put into those whose mark has no quotes.
    """
    found, lines, script = list[tuple[int, str]](), text.split("\n"), Script()
    begins = [(number, mark) for number, line in enumerate(lines) if (mark := _MARK.search(line))][:100]
    if begins:
        list(script.commands(text))
        script.variables = {name: of for name, of in script.variables.items() if name not in script.undecided}
    for number, mark in begins:
        end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == mark[2]), number)
        body = "\n".join(lines[number + 1 : end])
        filled = body if mark[1] else script.text(re.sub(r"\\([\\`])", r"\1", body).replace("\\$", "$$")).text
        found.append((number + 1, filled))
    return found


def _in_prose(text: str) -> ForeignRecipe | None:
    """The first command that begins a line of a text."""
    for begin in islice(_START.finditer(text), 200):
        lines, at = [begin[1].rstrip("`")], text[begin.end() + 1 :].split("\n", 200)[:200]
        while at and (re.search(r"[\\^`]\s*$", begin[1] if len(lines) == 1 else lines[-1]) or OPTION.match(at[0])):
            lines.append(at.pop(0))
        found = recipe_of_script("\n".join(lines), line=text.count("\n", 0, begin.start()) + 1)
        if found and _starts(found):
            return found
    return None


def _fences(text: str, compose: Compose | None) -> Sequence[ForeignRecipe]:
    """The code of Markdown: each fence by its own form. Commands for the same model are one engine, its first."""
    blocks, began, mark, lines = list[tuple[int, str]](), 0, "", text.split("\n")
    for number, line in enumerate(lines):
        found = _FENCE.match(line)
        if found and not mark:
            began, mark = number + 1, found[1]
        elif found and found[1].startswith(mark):
            inner = "\n".join(lines[began:number])
            quoted = re.sub(r"^[ \t]*>[ \t]?", "", inner, flags=re.M) if ">" in line else inner
            blocks.append((began, dedent(quoted)))
            mark = ""
    return _of_blocks(blocks, compose) or tuple(filter(None, [_in_prose(text)]))


def _page(text: str, compose: Compose | None) -> Sequence[ForeignRecipe]:
    """The code of a page: what is in `<pre>`."""
    blocks = ((text.count("\n", 0, one.end()), text[one.end() :].partition("</pre>")[0]) for one in _PRE.finditer(text))
    plain = [(line, html.unescape(re.sub(r"<[^<>]+>", "", block))) for line, block in islice(blocks, 500)]
    return _of_blocks(plain, compose)


def _of_blocks(blocks: Sequence[tuple[int, str]], compose: Compose | None) -> Sequence[ForeignRecipe]:
    found: dict[str, ForeignRecipe] = {}
    problems: list[RecipeRefused] = []
    for line, block in blocks:
        try:
            read = _read(block, compose, within=True)
        except RecipeRefused as problem:
            problems.append(problem)
            continue
        for one in read if all(one.engines and _starts(one) for one in read) else ():
            moved = replace(one, items=tuple(replace(i, line=i.line + line if i.line else 0) for i in one.items))
            name = _model_of(one) or f"line {line + 1}"
            found.setdefault(name, replace(moved, name=name, form=f"{one.form} of a page"))
    if not found and problems:
        raise problems[0]
    return tuple(found.values())


def _starts(recipe: ForeignRecipe) -> bool:
    """Whether it is more than the name of a program, as a drawing has it."""
    return recipe.contained or any(item.kind in ("argument", "variable") for item in recipe.items)


def _model_of(recipe: ForeignRecipe) -> str:
    """The last part of the name of its model; empty if it names none."""
    rules = engine_rules()[recipe.engines[0]].arguments
    named = (item.value for item in recipe.items if item.name in rules and rules[item.name].role == "model")
    return next(named, "").rstrip("/").rpartition("/")[2]


def _unit(text: str, _compose: Compose | None) -> Sequence[ForeignRecipe]:
    """A unit of systemd, or a quadlet of Podman."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    script, variables, options = Script(), list[RecipeItem](), list[RecipeItem]()
    image, command, start = "", "", 1
    for line, (key, _, value) in enumerate((map(str.strip, one.partition("=")) for one in lines), 1):
        if key == "Environment":
            for name, _, given in (word.partition("=") for word in _split(value)):
                script.variables[name] = (ShellWord(given, line),)
                variables.append(RecipeItem("variable", name, given, line))
        elif key in ("ExecStart", "Exec"):
            command, start = (value.lstrip("-@:+!") if key == "ExecStart" else value).replace("%h", "~"), line
        elif key == "Image":
            image = value
            options.append(RecipeItem("container", "--image", image, line))
        elif key[:1].isupper() and key in container_rules().keys:
            options.append(RecipeItem("container", container_rules().keys[key], value, line))
    if image:
        words = [word for one in script.commands(command, start) for word in one.words]
        found = contained(image, words, options, script, 0, "quadlet")
    else:
        found = recipe_of_script(command, script, start)
        found = found and found.beside(*options, form="unit of systemd")
    return (found.beside(*variables),) if found else ()


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _dockerfile(text: str, _compose: Compose | None) -> Sequence[ForeignRecipe]:
    """The last stage of a Dockerfile: its base image, variables, ENTRYPOINT and CMD."""
    joined = re.sub(r"\\\n(?:[ \t]*#[^\n]*\n)*", " ", text)
    steps = [(one[1].upper(), one[2].strip()) for one in re.finditer(r"^[ \t]*([A-Za-z]+)[ \t]+(.+)$", joined, re.M)]
    last = max((n for n, (step, _) in enumerate(steps) if step == "FROM"), default=0)
    script, items, words = Script(), list[RecipeItem](), dict[str, list[ShellWord]]()
    for number, (step, value) in enumerate(steps):
        if step in ("ARG", "ENV"):
            pairs = [word.partition("=") for word in _split(value)] if "=" in value else [value.partition(" ")]
            for name, _, given in pairs:
                script.variables[name] = (script.text(given),)
                items += [RecipeItem("variable", name, script.text(given).text, 0)] if step == "ENV" else []
        elif step in ("ENTRYPOINT", "CMD") and number > last:
            words[step] = _exec_form(value, script, text.count("\n", 0, max(text.find(step), 0)) + 1)
    image = script.text(re.sub(r"^--platform=\S+\s+|\s+[Aa][Ss]\s.*", "", steps[last][1])).text
    command = [*words.get("ENTRYPOINT", []), *words.get("CMD", [])]
    found = contained(image, command, [RecipeItem("container", "--image", image, 0)], script, 0, "Dockerfile")
    return (found.beside(*items),) if found and command else ()


def _exec_form(value: str, script: Script, line: int) -> list[ShellWord]:
    """The words of CMD: a list in JSON, or a line of shell."""
    given: object = ["sh", "-c", value]
    if value.startswith("["):
        with suppress(Invalid):
            given = parse_json(value)
    return [ShellWord(str(word), line) for word in given] if isinstance(given, list) else []


def _presets(text: str, _: Compose | None) -> Sequence[ForeignRecipe]:
    """The presets of llama-server's router: a section for each model, `[*]` for all."""
    parser = configparser.ConfigParser(
        interpolation=None, strict=False, allow_no_value=True, delimiters=("=",), inline_comment_prefixes=(";",)
    )
    # the parser's own way to keep capitals
    setattr(parser, "optionxform", str)  # noqa: B010 - an attribute that mypy takes for a method
    try:
        parser.read_string(f"[*]\n{text}" if not text.lstrip().startswith("[") else text)
    except (configparser.Error, AttributeError):  # the second for a line that continues a key without a value
        return ()
    engines = tuple(name for name, rules in engine_rules().items() if rules.presets)
    shared = dict(parser["*"]) if "*" in parser else {}
    found = []
    for name in (one for one in parser.sections() if one != "*"):
        keys = {k: v for k, v in {**shared, **parser[name]}.items() if k not in ("version", "load-on-startup")}
        variables = [RecipeItem("variable", k, keys.pop(k) or "", 0) for k in [*keys] if k.startswith("LLAMA_")]
        words = [ShellWord(word, _line_of(text, key)) for key, value in keys.items() for word in _preset(key, value)]
        alias = RecipeItem("argument", "--alias", name, _line_of(text, f"[{name}]"))
        items = (*([] if {"alias", "a"} & set(keys) else [alias]), *variables, *arguments_of(words, engines))
        found.append(ForeignRecipe("presets of llama-server", engines, items=items, name=name))
    return [one for one in found if _model_of(one) or any(item.name.startswith("LLAMA_ARG_") for item in one.items)]


def _preset(key: str, value: str | None) -> Iterator[str]:
    # llama.cpp b11434 common/preset.cpp: short names have one dash, and a switch is true or false
    flag = f"-{key}" if len(key) < 4 else f"--{key}"
    if value in (None, "", "true", "1") and key not in ("c", "np", "parallel", "spec-draft-n-max"):
        yield flag
    elif value == "false":
        yield f"--no-{key}"
    else:
        yield from (flag, str(value).strip("\"'"))


def _line_of(text: str, words: str) -> int:
    return text.count("\n", 0, max(text.find(words), 0)) + 1


def _windows(text: str, _: Compose | None) -> Sequence[ForeignRecipe]:
    """Each command of a batch file or PowerShell script, with what is assigned at its top level before it."""
    text = re.sub(r"%~dp0[\\/]?|\$PSScriptRoot\b", "./", re.sub(r"%(\w+)%|!(\w+)!|\$env:(\w+)", _named, text))
    text = re.sub(r"\\(?!\")", "/", re.sub(r"(?m)^(?:.*[`^][ \t]*\n)+.*", _on_one_line, text))
    text = re.sub(r"(?<![\w/])%([1-9])\b", r"${\1}", text.replace('`"', ""))
    if begin := re.search(r"(?im)^param[ \t]*\(", text):
        parameters, rest = re.split(r"(?m)\)[ \t]*$", f"{text[begin.end() :]}\n)", maxsplit=1)
        text = text[: begin.start()] + re.sub(r"(?m)^.*?(\$\w+[ \t]*=.*)$", r"\1", parameters) + rest
    # the elements of arrays, which PowerShell divides by commas
    text = re.sub(r"@(\((?:[^()]|\([^()]*\))*\))", lambda at: re.sub(",", " ", _on_one_line(at))[1:], text)
    script, found, given = Script(), dict[str, ForeignRecipe](), list[RecipeItem]()

    def splat(at: re.Match[str]) -> str:
        several = "@" in at[0] or len(script.variables.get(at[2], "?")) != 1
        return f'{at[1]}"${{{at[2]}[@]}}"' if several else f'{at[1]}"${at[2]}"'

    for number, line in enumerate(text.split("\n"), 1):
        for part in re.split(r";[ \t]*(?=\$)", line):
            if (assigned := _SET.match(part)) and (assigned[1] is not None or not _EXPRESSION.match(assigned[4])):
                value = assigned[4].strip().removesuffix("," if assigned[1] is None else assigned[1])
                value = value if value[:1] in tuple("\"'(") else f'"{value}"'
                several = assigned[3] and value[0] != "("
                list(script.commands(f"{assigned[2]}{assigned[3]}={f'({value})' if several else value}"))
                if assigned[1] is not None or part.startswith("${"):
                    word = one_word(script.variables.get(assigned[2], ()), number)
                    given.append(RecipeItem("variable", assigned[2], word.text, number, word.unset))
        command = re.sub(_JOINED, lambda at: at[1] or "", _BEFORE.sub("", line.strip()))
        command = re.sub(r"(^|[ \t])[@$](\w+)", splat, _AFTER.sub("", command))
        if re.match(r'"*(\$|\S*(llama-server|vllm|sglang|docker))', command) and not _SET.match(line.strip()):
            command = re.sub(r'^"(".*)"$', r"\1", command)
            one = recipe_of_script(command, Script(dict(script.variables)), number, level=1)
            if one is not None:
                found.setdefault(_model_of(one) or f"line {number}", one.beside(*given))
    return [replace(one, name=name) for name, one in found.items()]


def _on_one_line(found: re.Match[str]) -> str:
    """Lines as one, before as many empty ones."""
    lines = found[0].split("\n")
    return " ".join(line.strip().rstrip("`^") for line in lines) + "\n" * (len(lines) - 1)


def _named(found: re.Match[str]) -> str:
    name = found[1] or found[2] or found[3]
    return {"CD": ".", "USERPROFILE": "~"}.get(name.upper(), f"${{{name}}}")


def _makefile(text: str, compose: Compose | None) -> Sequence[ForeignRecipe]:
    """The recipes of a Makefile, with its variables as a shell has them."""
    text = re.sub(r"\$\((\w+)\)", r"${\1}", text.replace("$$", "$"))
    text = re.sub(
        r"^([A-Z_]+)[ \t]*[:?]?=[ \t]*(.*)$", lambda one: f"{one[1]}={' '.join(_split(one[2]))!r}", text, flags=re.M
    )
    lines = (re.sub(r"^[ \t]*@?", "", line) if line[:1] in ("\t", " ") else line for line in text.split("\n"))
    return _script("\n".join(line if not re.match(r"[\w.-]+[ \t]*:", line) else "" for line in lines), compose)


_READERS: dict[str, Reader] = {
    "dockerfile": _dockerfile,
    "fences": _fences,
    "makefile": _makefile,
    "page": _page,
    "presets": _presets,
    "script": _script,
    "unit": _unit,
    "windows": _windows,
    "yaml": recipes_of_yaml,
}


@cache
def forms() -> tuple[Form, ...]:
    """The forms of forms.yaml, in its order."""
    return tuple(read_packaged(resources.files("dflash_deploy.foreign") / "forms.yaml", Forms).forms)
