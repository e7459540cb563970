"""`.env`: filled in from the commented template, read back, and checked for keys that mean nothing.

Three programs read this file, each by its own rules: Compose expands `$`, python-dotenv does not, `docker run` keeps
quotes. Values are therefore written so that Compose and python-dotenv agree; a property test holds them to it.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Collection, Iterable, Mapping

from dotenv import dotenv_values

from dflash_deploy.catalog.settings import TemplateName, all_setting_names, passed_on, setting_names, template_text
from dflash_deploy.errors import SettingsRefused

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=~-]*\Z")

_LIKE_A_SECRET = re.compile(r"_(TOKEN|KEY|SECRET|PASSWORD)\Z")

NEARLY = 0.85
"""Likeness from which an unknown key is taken for a slip of a known one, even where the engine might read it."""


def fill_template(values: Mapping[str, str], template: TemplateName = "vllm") -> str:
    """An engine's commented template with these values; keys that it does not have follow at the end."""
    known = setting_names(template)
    lines = [_filled(line, values, known) for line in template_text(template).splitlines()]
    others = [name for name in values if name not in known]
    if others:
        lines += ["", "# --- Handed to the engine as they are " + "-" * 83, ""]
        lines += [f"{name}={quote(values[name])}" for name in others]
    return "\n".join(lines) + "\n"


def _filled(line: str, values: Mapping[str, str], known: Collection[str]) -> str:
    name = line.removesuffix("=")
    return f"{line}{quote(values.get(name, ''))}" if name in known else line


def quote(value: str) -> str:
    """`value` as Compose and python-dotenv both read it back. Raises SettingsRefused where there is no such form."""
    if _PLAIN.match(value):
        return value
    if re.search(r"['\\\x00-\x1f\x7f]", value):
        raise SettingsRefused(
            f"{value!r} cannot be written to .env",
            hint="leave out single quotes, backslashes and control characters",
        )
    return f"'{value}'"


def parse(text: str) -> dict[str, str]:
    """The lines of a `.env`. `$` stands for itself: no value is made from another or from this process."""
    return {name: value or "" for name, value in dotenv_values(stream=io.StringIO(text), interpolate=False).items()}


def check_keys(names: Iterable[str]) -> None:
    """Raises SettingsRefused for the first key that is neither a setting nor one that the engine reads itself."""
    known = all_setting_names()
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        sure = bool(near) and difflib.SequenceMatcher(None, name, near[0]).ratio() >= NEARLY
        if _LIKE_A_SECRET.search(name) and not sure:
            raise SettingsRefused(
                f".env: {name} looks like a secret, and would be handed to the engine in the open",
                hint="VLLM_API_KEY, DFLASH_API_KEYS and HF_TOKEN are the secrets that are kept",
            )
        if passed_on(name) and not sure:
            continue
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsRefused(
            f".env: unknown setting {name}", hint=f"{hint}the comments of a fresh .env name every setting"
        )
