"""The page of commands: usage, arguments and options, as the command line defines them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dflash_deploy.cli.app import COMMANDS, load
from dflash_deploy.cli.shared import declared, shared_options
from tools.reference.markdown import BUILT, code, joined

_HEAD = """# Commands

`dflash-deploy COMMAND --help` prints the same. An option of an earlier command is only named. All commands share the
[exit codes](exit-codes.md), and these options, before the command or behind it:

{SHARED}

`dflash-deploy --install-completion` installs completion for your shell: commands, options, profiles, models, checks,
clients and deployments.

{SOURCE}
"""

_VALUES = {str: "TEXT", int: "N", float: "N", Path: "PATH"}  # how the value of an option is written, by its type


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, such as `models list`."""
    for name in COMMANDS:
        yield from _leaves(name, load(name))


def shown() -> Iterator[tuple[str, Any]]:
    """The commands that `--help` shows."""
    return ((name, command) for name, command in commands() if not command.hidden)


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield name, command
        return
    for word, one in inner.items():
        yield from _leaves(f"{name} {word}", one)


def examples_of(command: Any) -> list[str]:
    """The lines of its examples."""
    return [line.strip() for line in str(command.epilog).splitlines() if line.startswith("  dflash-deploy ")]


def page() -> str:
    """The whole page."""
    first: dict[tuple[str, str], str] = {}
    listed = "\n".join(f"- {code(spelling)}: {meaning}" for spelling, meaning in of_all_commands())
    head = _HEAD.replace("{SHARED}", listed).replace("{SOURCE}", BUILT.format(source="the command line"))
    return joined(head, *(_section(name, command, first) for name, command in shown()))


def of_all_commands() -> Iterator[tuple[str, str]]:
    """The options that any command accepts, and which commands do not have one, or only have it."""
    has = {name: {option.name for option in command.params} for name, command in shown()}
    types = get_type_hints(declared, include_extras=True)
    for name, option in shared_options().items():
        those, lacking = ([one for one, names in has.items() if (name in names) is wanted] for wanted in (True, False))
        if len(those) < len(lacking):
            only = f" Only for {', '.join(map(code, those))}."
        else:
            only = f" Not for {', '.join(map(code, lacking))}." if lacking and name != "directory" else ""
        yield spelled(option, types[name]), explained(option) + only


def _section(name: str, command: Any, first: dict[tuple[str, str], str]) -> str:
    """The section of a command. `first` has the command that described an option, and gets those of this one."""
    parts = parts_of(name, command)
    own = [*parts.arguments, *parts.options]
    described = [one for one in own if first.setdefault(one, name) == name]
    named: dict[str, list[str]] = {}
    for one in own:
        if first[one] != name:
            named.setdefault(first[one], []).append(code(one[0]))
    return "\n".join(
        (
            f"## {name}\n",
            parts.text + "\n",
            *(() if parts.usage == f"dflash-deploy {name} [OPTIONS]" else (f"    {parts.usage}\n",)),
            *(f"- {code(spelling)}: {meaning}" for spelling, meaning in described),
            *(f"- As in [{one}](#{one.replace(' ', '-')}): {', '.join(names)}." for one, names in named.items()),
            *([""] if own else ()),
            "Examples:\n",
            *(f"    {example}" for example in examples_of(command)),
            "",
        )
    )


@dataclass(frozen=True)
class Parts:
    """What a command's description consists of; arguments and options are each a spelling and a meaning."""

    text: str
    usage: str
    arguments: list[tuple[str, str]]
    options: list[tuple[str, str]]


def parts_of(name: str, command: Any) -> Parts:
    """The parts of the description of the command with this full name."""
    types = {key: one.annotation for key, one in inspect.signature(command.callback, eval_str=True).parameters.items()}
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.help and one.expose_value]
    needed = [spelled(one, types[one.name]) for one in options if one.required]
    return Parts(
        text=" ".join(inspect.cleandoc(command.help).split()),
        usage=" ".join(["dflash-deploy", name, *(argument(one) for one in arguments), *needed, "[OPTIONS]"]),
        arguments=[(argument(one), explained(one)) for one in arguments],
        options=[(spelled(one, types[one.name]), explained(one)) for one in options],
    )


def argument(parameter: Any) -> str:
    """How an argument is written in the usage."""
    name = parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def spelled(parameter: Any, kind: Any) -> str:
    """The names of an option, and the value that it takes."""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    value = _value(kind)
    return f"{names} {value}" if value else names


def _value(kind: Any) -> str:
    """The value that an option of this type takes; empty for a switch."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    kinds = [one for one in get_args(kind) if one is not NoneType] if NoneType in get_args(kind) else [kind]
    (kind,) = kinds
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return _VALUES.get(get_args(kind)[0] if get_args(kind) else kind, "")


def explained(parameter: Any) -> str:
    """What a parameter means, whether it is required, and its default."""
    default = parameter.default
    text = " ".join((parameter.help or "").split())
    if parameter.required:
        return f"{text} Required."
    if default is None or isinstance(default, bool) or callable(default) or str(default) in {"", ".", "()"}:
        return text
    return f"{text} Default: {code(str(default))}."
