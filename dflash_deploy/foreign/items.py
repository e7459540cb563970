"""A published recipe as a list of what it sets: arguments, variables, options of its container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dflash_deploy.errors import BadInput

# An argument of the engine, an environment variable, an option of the container, or another command of the script.
ItemKind = Literal["argument", "variable", "container", "command"]


@dataclass(frozen=True)
class ShellWord:
    """A word of a command. `unset` is what a shell would put into it and the recipe does not say, such as `$1`."""

    text: str
    line: int
    unset: str = ""

    @property
    def open(self) -> bool:
        """Whether all of it is what a shell would put in: it may be any number of words."""
        return bool(self.unset) and self.text == self.unset


@dataclass(frozen=True)
class RecipeItem:
    """One thing that a recipe sets. `line` counts from 1; 0 if it is not known.

    `written` is the name in the recipe, if it has another: an abbreviation, or a variable that is an option.
    """

    kind: ItemKind
    name: str
    value: str
    line: int
    unset: str = ""
    written: str = ""
    words: tuple[str, ...] = ()
    """The words of the value, if they are several."""


@dataclass(frozen=True)
class ForeignRecipe:
    """What a recipe starts. `engines` are the engines with this program, empty for a file of variables.

    `mounts` has the directory of the machine for each directory of the container. `name` is what its file calls it,
    such as the service of a Compose file.
    """

    form: str
    engines: tuple[str, ...] = ()
    image: str = ""
    contained: bool = False
    items: tuple[RecipeItem, ...] = ()
    mounts: dict[str, str] = field(default_factory=dict)
    name: str = ""

    def beside(self, *items: RecipeItem, form: str = "", name: str = "") -> ForeignRecipe:
        """The same recipe with further items before its own."""
        return replace(self, items=(*items, *self.items), form=form or self.form, name=name or self.name)


class RecipeRefused(BadInput):
    """Raised when a recipe is not one that can be read: no engine in it, an open quote, a NUL."""


class HasLogic(RecipeRefused):
    """Raised for a script that decides by conditions, loops or functions what it starts."""


class SeveralEngines(RecipeRefused):
    """Raised for a file that starts several engines. `names` are what --service takes."""

    def __init__(self, names: Sequence[str]) -> None:
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        super().__init__(f"the recipe starts {len(names)} engines: {shown}", hint=f"name one: --service {names[0]}")
        self.names = tuple(names)
