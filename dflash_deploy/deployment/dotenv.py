"""`.env`: written with the settings that have a value, read back, and checked for unknown settings.

Three programs read this file with different rules: Compose expands `$`, python-dotenv does not, `docker run` keeps
quotes. So values are written in a form that Compose and python-dotenv read the same; a property test checks it. Secrets
are found in the raw lines, because they must not be shown either if a line cannot be parsed or a name is wrong. API
keys are found as whole words, and can be taken over from another `.env`.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from dotenv.parser import Binding, parse_stream

from dflash_deploy.catalog.settings import all_setting_names, manual, passed_on
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.gone import GONE
from dflash_deploy.intake.parse import printable
from dflash_deploy.redact import REDACTED, Secret, redact_by_shape
from dflash_deploy.serve.api_keys import KEY
from dflash_deploy.serve.engines import DEFAULT, ENGINES
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

# A name and what follows it, with the separators that people use.
_LINE = re.compile(
    r"(?P<mark>#)?\s*(?:export\s+)?['\"]?(?P<name>[\w.-]{2,64})['\"]?\s*(?P<between>[=:]|\s)\s*(?P<rest>\S.*)"
)

_SECRET_LINE = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH", re.IGNORECASE)

_GENERATED = re.compile(r"(?<![\w./-])[A-Za-z0-9_-]{43}(?![\w./-])")  # the shape of a generated key
NEARLY_SECRET = 0.8  # similarity to the name of a secret from which another name is taken for a typo of it


@cache
def names_a_secret(name: str) -> bool:
    """Return whether the value of a variable is or may be a secret: by its name, or as a typo of such a name."""
    if name in SECRET_NAMES:
        return True
    if name in all_setting_names():
        return False
    near = difflib.get_close_matches(name.upper(), SECRET_NAMES, n=1, cutoff=NEARLY_SECRET)
    return bool(near) or _SECRET_LINE.search(name) is not None


def secrets_in(text: str) -> Iterator[Secret]:
    """Yield everything in the text of a `.env` that may be a secret, however damaged the text is.

    One value yields several secrets, with and without quotes and a comment: in a damaged line its end is unknown. A
    commented-out line counts too: the old key in it may still be valid elsewhere.
    """
    # a file in UTF-16 has a NUL after each ASCII character
    for line in text.replace("\0", "").lstrip("\ufeff").splitlines():
        found = _LINE.match(line.strip())
        if found is None:
            yield from (Secret(value) for value in _GENERATED.findall(line))
        elif names_a_secret(found["name"]) and not (found["mark"] and found["between"] != "="):
            yield from map(Secret, _values(found["rest"]))
        elif found["name"] not in all_setting_names():
            yield from (Secret(value) for value in _GENERATED.findall(line))


def _values(rest: str) -> set[str]:
    whole = rest.strip()
    ends = {whole, whole.partition(" #")[0].strip(), whole.split()[0]}
    return {value for end in ends for value in (end, end.strip("'\"`,;"))}


_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=~-]*\Z")

# A well-formed value and the comment after it.
_SOUND_VALUE = re.compile(r"[ \t]*(?P<quote>['\"]?)[A-Za-z0-9_,:=-]*(?P=quote)(?P<rest>(?:[ \t]+#[^\r\n]*)?\s*)\Z")

# Prefix of a comment with the reason for a value.
WHY = "#= "

_LIKE_A_SECRET = re.compile(r"_(TOKEN|KEY|SECRET|PASSWORD)\Z")

MOST_BYTES = 256 * 1024  # limit of a `.env`
NEARLY = 0.85  # similarity from which an unknown setting is taken for a typo, even if the engine might read it


HEAD = """\
# Settings that are not here have their default: `dflash-deploy set --list` shows all of them. Quote values that contain
# spaces. Do not use $ in values, and do not write comments after them. `dflash-deploy up` applies it.
"""


def fill_template(values: Mapping[str, str], engine: str = DEFAULT) -> str:
    """Return a `.env` with the values that are not empty, in the sections of the engine's manual."""
    known = {name: described.section for name, described in manual(ENGINES[engine].template).items()}
    lines, section = [], ""
    for name in (*known, *(name for name in values if name not in known)):
        if not values.get(name):
            continue
        if known.get(name, OTHERS) != section:
            section = known.get(name, OTHERS)
            lines.append(f"# {section}")
        lines.append(f"{name}={quote(values[name], name)}")
    return HEAD + "\n".join(lines) + "\n"


OTHERS = "Passed to the engine unchanged"  # the section of what is not a setting


def quote(value: str, name: str = "") -> str:
    """Return `value` in a form that Compose and python-dotenv read the same.

    Raises SettingsRefused, which names the setting and not its value, if there is none.
    """
    if _PLAIN.match(value):
        return value
    # the container's reader of secrets knows no quote in them (serve/secrets.py)
    secret = name in SECRET_NAMES
    if re.search(r"[\\\x00-\x1f\x7f]", value) or ("'" in value and ("$" in value or secret)):
        of = f": {name}" if name else ""
        raise SettingsRefused(
            # not shown: it may be a key
            f"a value with a backslash, a control character or {'a quote' if secret else 'both a quote and $'} "
            f"cannot be written to .env{of}",
            hint="remove these characters",
        )
    if "'" not in value:
        return f"'{value}'"
    return '"' + value.replace('"', '\\"') + '"'


def replace_value(text: str, name: str, value: str) -> str:
    """Return the text of a `.env` with one setting changed and all other lines and comments kept.

    Every line of the setting is changed, so that the old value is gone; if there is none, a line is added. Raises
    SettingsRefused if such a line cannot be parsed, since the old value would stay in the file.
    """
    mark, body = _marked(text)
    bindings = list(parse_stream(io.StringIO(body)))
    _check_parsed(bindings, name)
    parts = [
        _rewritten(binding.original.string, name, quote(value, name))
        if binding.key == name
        else binding.original.string
        for binding in bindings
    ]
    if all(binding.key != name for binding in bindings):
        ended = not body or body.endswith(("\n", "\r"))
        parts.append(f"{'' if ended else chr(10)}{name}={quote(value, name)}\n")
    return mark + "".join(parts)


def without(text: str, name: str) -> str:
    """Return the text of a `.env` without a setting, all other lines and comments kept; raises as `replace_value`."""
    mark, body = _marked(text)
    bindings = list(parse_stream(io.StringIO(body)))
    _check_parsed(bindings, name)
    return mark + "".join(
        _blank_lines(one.original.string) if one.key == name else one.original.string for one in bindings
    )


def _blank_lines(line: str) -> str:
    """The blank lines before a setting, which its binding begins with."""
    blank = line[: len(line) - len(line.lstrip())]
    return blank[: blank.rfind("\n") + 1]


def _check_parsed(bindings: Iterable[Binding], name: str) -> None:
    """Raise SettingsRefused if a line that names the setting cannot be parsed."""
    if any(binding.error and name in binding.original.string for binding in bindings):
        raise SettingsRefused(f".env: the line of {name} cannot be parsed", hint="close the open quote in this line")


def with_comments(text: str, name: str, why: Iterable[str]) -> str:
    """Return the text of a `.env` with comments before the first line of `name`; earlier ones are removed."""
    mark, body = _marked(text)
    end = "\r\n" if "\r\n" in body else "\n"
    kept = [line for line in body.splitlines(keepends=True) if not line.startswith(WHY)]
    setting = re.compile(rf"\s*(?:export\s+)?{re.escape(name)}\s*(?:=|$)")
    place = next(number for number, line in enumerate(kept) if setting.match(line))
    comments = [WHY + " ".join(line.splitlines()) + end for line in why]
    return mark + "".join([*kept[:place], *comments, *kept[place:]])


def _marked(text: str) -> tuple[str, str]:
    """Split off the byte order mark that some editors write."""
    return ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)


def _rewritten(line: str, name: str, value: str) -> str:
    """Return one binding with another value; blank lines before it and a comment after it stay."""
    before, equals, old = line.partition("=")
    if not equals:
        blank = line[: len(line) - len(line.lstrip())]
        return f"{blank}{name}={value}{_line_end(line)}"
    sound = _SOUND_VALUE.match(old)
    return f"{before}={value}{sound['rest'] if sound else _line_end(line)}"


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def parse(text: str) -> dict[str, str]:
    """Parse the text of a `.env`. `$` is literal: no variable is expanded. Lines that cannot be parsed are left out."""
    return {binding.key: binding.value or "" for binding in parse_stream(io.StringIO(text)) if binding.key is not None}


def check_lines(text: str) -> None:
    """Raise SettingsRefused for the first line of a `.env` that cannot be parsed."""
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            blank = len(binding.original.string) - len(binding.original.string.lstrip("\n"))
            raise SettingsRefused(
                f".env: line {binding.original.line + blank} cannot be parsed",
                hint="a setting is a line of the form NAME=value; close its quote if it has one",
            )


def shareable(text: str) -> str:
    """Return the settings of a `.env` for sharing, without secrets, comments and lines that cannot be parsed.

    The value of a variable that is neither a setting nor passed on to the engine is left out: it may be a secret under
    a mistyped name.
    """
    kept = []
    for name, value in parse(text).items():
        known = name in all_setting_names() or passed_on(name)
        secret = names_a_secret(name) or not known
        kept.append(f"{name}={REDACTED if secret and value else redact_by_shape(value)}\n")
    return "".join(kept)


def check_keys(names: Iterable[str]) -> None:
    """Raise SettingsRefused for the first name that is neither a setting nor a variable of the engine."""
    known = all_setting_names()
    for name in names:
        if name in known:
            continue
        if name in GONE:
            raise SettingsRefused(f".env: {name} is no longer a setting", hint=GONE[name])
        near = difflib.get_close_matches(name, known, n=1) or [one for one in known if one.endswith(f"_{name}")]
        sure = bool(near) and difflib.SequenceMatcher(None, name, near[0]).ratio() >= NEARLY
        if _LIKE_A_SECRET.search(name) and not sure:
            raise SettingsRefused(
                f".env: {printable(name)} looks like a secret and would be passed to the engine as a plain variable",
                hint=f"remove it; the supported secrets are {', '.join(SECRET_NAMES)}",
            )
        if passed_on(name) and not sure:
            continue
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsRefused(
            f".env: unknown setting `{printable(name)}`", hint=f"{hint}`dflash-deploy set --list` shows all settings"
        )


def is_foreign(names: Iterable[str]) -> bool:
    """Whether settings are of another program: none of the names is ours, except for the token that others use too."""
    return {*all_setting_names(), *GONE}.difference([Settings.hf_token.name]).isdisjoint(names)


NAMES = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)


def whole_word(key: str) -> re.Pattern[str]:
    """Return a pattern that finds a key, but not inside a longer one."""
    return re.compile(rf"(?<![\w-]){re.escape(key)}(?![\w-])")


def with_keys_of(text: str, other: str) -> str:
    """Return the text `other` with the keys of `text`, all else kept. Raises SettingsRefused if a line is damaged."""
    keys, before = parse(text), parse(other)
    for name in NAMES:
        old, new = before.get(name, ""), keys.get(name, "")
        if old != new:
            other = replace_value(other, name, new)
            # other settings may have the owner's key too
            other = whole_word(old).sub(new, other) if KEY.fullmatch(old) and KEY.fullmatch(new) else other
    return other
