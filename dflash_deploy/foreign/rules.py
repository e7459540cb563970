"""How the arguments, variables and container options of others become settings: mapping/, validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.catalog.read import Entry, read_packaged


class ForeignRule(Entry):
    """The meaning of one argument, variable or option."""

    setting: Annotated[str, Field(description="the setting that takes its value")] = ""
    role: Annotated[
        Literal["", "model", "file", "drafter", "served", "quantization", "port", "mount", "publish", "image"],
        Field(description="what it names, if that is more than a value"),
    ] = ""
    values: Annotated[
        dict[str, str], Field(description="the setting's value for each of theirs; `` is an argument without a value")
    ] = {}
    add: Annotated[int, Field(description="added to a number")] = 0
    method: Annotated[bool, Field(description="it names the method of drafting, on which others depend")] = False
    of_method: Annotated[bool, Field(description="it belongs to the method of drafting")] = False
    comes_with: Annotated[list[str], Field(description="arguments that it needs, and that are not taken over")] = []
    per: Annotated[list[str], Field(description="arguments by whose number theirs is divided")] = []
    shared: Annotated[int, Field(description="number by which it is divided if there is a drafter")] = 1
    human: Annotated[bool, Field(description="it may have a unit: 32k is 32,000 and 32K is 32,768")] = False
    superseded: Annotated[str, Field(description="why the plan does it by itself")] = ""
    dangerous: Annotated[str, Field(description="what it may do to the machine, its network or its keys")] = ""
    when: Annotated[str, Field(description="expression that the value must match to be dangerous or superseded")] = ""
    ours: Annotated[str, Field(description="the line of .env that does what theirs is for")] = ""
    instead: Annotated[dict[str, str], Field(description="the line of .env that means the same, by their value")] = {}
    other: Annotated[str, Field(description="why it has no counterpart")] = ""


class EngineRules(Entry):
    """What is known about one engine's commands."""

    like: Annotated[str, Field(description="the engine whose rules are these too, if its own do not say more")] = ""
    programs: Annotated[list[list[str]], Field(description="beginnings of its commands")] = []
    images: Annotated[str, Field(description="expression that matches the names of its images")] = ""
    serves: Annotated[bool, Field(description="its images start the server if the command has arguments only")] = True
    marks: Annotated[list[str], Field(description="arguments that only this engine has, of those of one program")] = []
    dotted: Annotated[bool, Field(description="its parser takes --flag.key VALUE for JSON")] = False
    positional: Annotated[str, Field(description="the argument that the first word without a dash is")] = ""
    routes: Annotated[list[str], Field(description="arguments whose value begins with / and is not a file")] = []
    own_variables: Annotated[str, Field(description="beginning of the names of its own variables")] = ""
    runtime: Annotated[str, Field(description="sparkrun's name for it")] = ""
    chart: Annotated[bool, Field(description="the Helm chart with `servingEngineSpec` starts it")] = False
    presets: Annotated[bool, Field(description="it reads presets in INI files")] = False
    arguments: dict[str, ForeignRule] = {}
    variables: dict[str, ForeignRule] = {}


class StrangersRule(Entry):
    """What a recipe of a stranger may not set: it is listed as dangerous, whatever spelling the recipe has for it."""

    name: Annotated[str, Field(description="expression that matches the setting or variable of `.env`")]
    when: Annotated[str, Field(description="expression that the value must match")] = "."
    why: Annotated[str, Field(description="what it may do to the machine, its network or its keys")]


class ContainerRules(Entry):
    """Options of containers, variables of every engine, and other commands of a script."""

    switches: Annotated[str, Field(description="options of `docker run` without a value")]
    options: dict[str, ForeignRule]
    variables: dict[str, ForeignRule]
    commands: Annotated[dict[str, str], Field(description="expressions, and why such a command is dangerous")]
    prefixes: Annotated[str, Field(description="programs that start the command after their options")]
    beside: Annotated[str, Field(description="programs whose words may be a program's name, and do not start it")]
    remote: Annotated[str, Field(description="programs that start the command in their last word")]
    beside_engines: Annotated[str, Field(description="expression for images of other programs with an engine's name")]
    short: Annotated[dict[str, str], Field(description="short options of `docker run`, and the long ones")]
    keys: Annotated[dict[str, str], Field(description="keys of Compose files, pods and units, and their options")]
    sparkrun: Annotated[dict[str, str], Field(description="sparkrun's names of arguments, and their settings")]
    strangers: Annotated[list[StrangersRule], Field(description="what a recipe may not set")]

    def refuses(self, name: str, value: str) -> str:
        """Why a recipe may not set this setting or variable to this value; empty if it may."""
        rules = (one for one in self.strangers if re.fullmatch(one.name, name) and re.search(one.when, value))
        return next((one.why for one in rules), "")

    def danger(self, text: str) -> str:
        """Why a command is dangerous; empty if it is not known to be."""
        return next((why for pattern, why in self.commands.items() if re.search(pattern, text)), "")


@cache
def engine_rules() -> dict[str, EngineRules]:
    """The rules of each engine, by its name."""
    folder = resources.files("dflash_deploy.foreign") / "mapping"
    files = {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}
    found = {name: read_packaged(files[name], EngineRules) for name in sorted(files) if name != "container"}
    return {name: _complete(rules, found) for name, rules in found.items()}


def _complete(rules: EngineRules, others: Mapping[str, EngineRules]) -> EngineRules:
    """The rules with those of the engine that it is like."""
    if not rules.like:
        return rules
    own = {name: getattr(rules, name) for name in rules.model_fields_set - {"arguments"}}
    base = others[rules.like]
    return base.model_copy(update={**own, "arguments": {**base.arguments, **rules.arguments}})


@cache
def container_rules() -> ContainerRules:
    """The rules that all engines share."""
    return read_packaged(resources.files("dflash_deploy.foreign") / "mapping" / "container.yaml", ContainerRules)
