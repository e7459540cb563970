"""The page of settings: types, units and defaults from the typed settings, meanings from the engines' manuals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dflash_deploy.catalog.settings import kind_of, manual
from dflash_deploy.serve.field import EVERY, Field
from dflash_deploy.serve.settings import Settings
from tools.reference.markdown import ENGINES, GENERATED, code, joined, table

_HEAD = f"""# Settings

Every setting of `.env`. `dflash-deploy init` writes those that have a value, and `dflash-deploy plan` shows why. To
change one, use `dflash-deploy set NAME=VALUE` or edit the file, then run `dflash-deploy up`. `set --list` prints this
table for the engine of a deployment. An unknown name is rejected with a hint that names the closest valid one. Shell
variables are ignored. If a value is missing or empty, the default applies; without a default the engine chooses.

The meaning is that of vLLM's manual; the manuals of the other engines (`env-templates/`) differ where the engine
does. It begins with the engines that have the setting, if not all do.

{GENERATED.format(source="`dflash_deploy/serve/settings.py` and `env-templates/`")}
"""


def page() -> str:
    """The whole page, a table for each section of the templates."""
    described = {name: one for engine in reversed(EVERY) for name, one in manual(engine).items()}
    fields = [field for field in Settings.fields() if not field.internal]
    parts = [_HEAD]
    for section, inside in groupby(fields, key=lambda field: described[field.name].section):
        rows: dict[str, list[tuple[str, ...]]] = {}
        for field in inside:
            rows.setdefault(_meaning(field, described[field.name].text), []).append(
                (code(field.name), kind_of(field, "`"), code(Field.written(field.default)))
            )
        cells = ((*(_once(column) for column in zip(*row, strict=True)), text) for text, row in rows.items())
        parts += [f"## {section}\n", *table(("setting", "value", "default", "meaning"), cells)]
    return joined(*parts)


def _once(cells: tuple[str, ...]) -> str:
    """The cells of settings that share a row; once if all are the same."""
    return "; ".join(dict.fromkeys(cell or "empty" for cell in cells)) if any(cells) else ""


def _meaning(field: Field[Any], text: str) -> str:
    """The meaning of a setting: settings that share a comment of the template share a row."""
    only = "" if field.templates == EVERY else ", ".join(ENGINES[one] for one in field.templates) + ": "
    return only + " ".join(_marked(text))


def _marked(text: str) -> Iterator[str]:
    """The words of a comment, names of settings as code."""
    for word in text.split():
        yield re.sub(r"^([A-Z][A-Z]+(?:_[A-Z]+)+)([.,:;)]*)$", r"`\1`\2", word)
