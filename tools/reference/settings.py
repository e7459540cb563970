"""The page of settings: types, units and defaults from the typed settings, meanings from the templates of `.env`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dflash_deploy.assets import asset_text
from dflash_deploy.serve.field import EVERY, Field
from dflash_deploy.serve.settings import Settings
from tools.reference.markdown import ENGINES, GENERATED, code, joined, table

_HEAD = f"""# Settings

Every setting of `.env`. `dflash-deploy init` writes the file with values, and `dflash-deploy plan` shows why each one
has its value. Edit the file, then run `dflash-deploy up`. An unknown name is rejected with a hint that names the
closest valid one. Shell variables are ignored. If a value is empty, the default applies; without a default the engine
chooses.

The meaning is that of vLLM's template; the templates of the other engines (`env-templates/`) differ where the engine
does. It begins with the engines that have the setting, if not all do.

{GENERATED.format(source="`dflash_deploy/serve/settings.py` and `env-templates/`")}
"""


@dataclass(frozen=True)
class Described:
    """One setting of a template: the section that it is in, and its comment."""

    section: str
    text: str


def template(engine: str) -> dict[str, Described]:
    """The settings of one template by name. Settings after one comment share it."""
    found: dict[str, Described] = {}
    section, comment, after_setting = "", "", False
    for line in asset_text("env-templates", f"{engine}.env").splitlines():
        if title := re.fullmatch(r"# --- (.+?) -+", line):
            section, comment = title[1], ""
        elif line.startswith("#"):
            comment = line[2:] if after_setting or not comment else f"{comment} {line[2:]}"
        elif "=" in line:
            found[line.partition("=")[0]] = Described(section, comment)
        elif not line:
            comment = ""
        after_setting = "=" in line and not line.startswith("#")
    return found


def page() -> str:
    """The whole page, a table for each section of the templates."""
    described = {name: one for engine in reversed(EVERY) for name, one in template(engine).items()}
    fields = [field for field in Settings.fields() if not field.internal]
    parts = [_HEAD]
    for section, inside in groupby(fields, key=lambda field: described[field.name].section):
        rows: dict[tuple[str, ...], list[str]] = {}
        for field in inside:
            rows.setdefault(_row(field, described[field.name].text), []).append(code(field.name))
        cells = ((", ".join(names), *row) for row, names in rows.items())
        parts += [f"## {section}\n", *table(("setting", "value", "default", "meaning"), cells)]
    return joined(*parts)


def _row(field: Field[Any], text: str) -> tuple[str, ...]:
    """All about a setting but its name: settings that share a comment of the template share a row."""
    kind = _kind(field)
    value = f"{kind} ({field.unit})" if field.unit and field.unit not in kind else kind
    default = code(Field.written(field.default))
    only = "" if field.templates == EVERY else ", ".join(ENGINES[one] for one in field.templates) + ": "
    return value, default, only + " ".join(_marked(text))


def _kind(field: Field[Any]) -> str:
    """What a value is, from the docstring of its reader; the words of a choice from the choice itself."""
    allowed = inspect.getclosurevars(field.kind).nonlocals.get("allowed")
    if allowed:
        return " or ".join(code(word) for word in allowed)
    words = (inspect.getdoc(field.kind) or "").partition("\n")[0].rstrip(".")
    return words[:1].lower() + words[1:]


def _marked(text: str) -> Iterator[str]:
    """The words of a comment, names of settings as code."""
    for word in text.split():
        yield re.sub(r"^([A-Z][A-Z]+(?:_[A-Z]+)+)([.,:;)]*)$", r"`\1`\2", word)
