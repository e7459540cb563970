"""A published recipe as a list of what it sets: arguments, variables, options of its container."""

from __future__ import annotations

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


@dataclass(frozen=True)
class RecipeItem:
    """One thing that a recipe sets. `line` counts from 1; 0 if it is not known."""

    kind: ItemKind
    name: str
    value: str
    line: int
    unset: str = ""


@dataclass(frozen=True)
class ForeignRecipe:
    """What a recipe starts. `engines` are the engines with this program, empty for a file of variables.

    `mounts` has the directory of the machine for each directory of the container.
    """

    form: str
    engines: tuple[str, ...] = ()
    image: str = ""
    contained: bool = False
    items: tuple[RecipeItem, ...] = ()
    mounts: dict[str, str] = field(default_factory=dict)

    def beside(self, *items: RecipeItem, form: str = "") -> ForeignRecipe:
        """The same recipe with further items before its own."""
        return replace(self, items=(*items, *self.items), form=form or self.form)


class RecipeRefused(BadInput):
    """Raised when a recipe is not one that can be read: no engine in it, an open quote, a NUL."""
