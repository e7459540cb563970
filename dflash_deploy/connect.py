"""Configurations for clients, from the templates in connect/, and how one merges into the file that a client reads.

None of them contains the API key.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from dflash_deploy.assets import asset_text
from dflash_deploy.errors import FileInvalid
from dflash_deploy.intake.files import shown
from dflash_deploy.intake.parse import Invalid, parse_json, parse_packaged_yaml, parse_yaml

KEY_VARIABLE = "DFLASH_API_KEY"  # the environment variable from which every client reads the API key

# Maximum tokens of an answer in a client's configuration; a quarter of the context if that is less.
LONGEST_ANSWER = 32_768

SOME_CONTEXT = 32_768  # context in tokens in a client's configuration if the deployment leaves it to the engine

# A picture for a first request: a red square of 64 pixels, PNG in base64.
RED_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQMAAACQp+OdAAAAA1BMVEXcFBQX"
    "nfKmAAAAD0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElFTkSuQmCC"
)


class ClientTemplate(BaseModel):
    """One client: its template, where the configuration belongs, how it is started, and what it needs.

    The fields are described at the top of connect/clients.yaml.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    also: tuple[str, ...] = ()
    file: str
    where: str
    images_file: str = ""
    note: str = ""
    tools: bool = False
    path: str = ""
    keeps: tuple[str, ...] = ()
    command: str = ""
    install: str = ""
    key_variables: tuple[str, ...] = ()
    request: int = 0
    source: str = ""

    @property
    def is_shell(self) -> bool:
        """Whether the configuration is a program for the shell, which also starts the client."""
        return self.file.endswith(".sh")


@dataclass(frozen=True)
class EndpointFacts:
    """The facts about an endpoint in a configuration. `url` is without /v1, `context` in tokens.

    `directory` is that of its deployment, `key_name` that of a further key; `key_file` has the key of an endpoint
    without a deployment. `root` is the file of the certificate that clients must trust.
    """

    url: str
    model: str
    context: int | None
    directory: str
    key_file: str = ""
    key_name: str = ""
    images: bool = True
    tools: bool = True
    reasoning: bool = False
    root: Path | None = None

    @property
    def key_command(self) -> str:
        """The shell command that prints the API key."""
        if self.key_file:
            return shlex.join(("cat", self.key_file))
        name = (self.key_name,) if self.key_name else ()
        return shlex.join(("dflash-deploy", "keys", "show", "--reveal", "--dir", self.directory, *name))

    @property
    def longest(self) -> int:
        """The context in tokens, assumed if it is unknown."""
        return self.context or SOME_CONTEXT

    def _asks(self, content: object) -> str:
        return json.dumps({"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 100})

    @property
    def output(self) -> int:
        """The longest answer in tokens, which clients keep room for."""
        return min(LONGEST_ANSWER, max(self.longest // 4, 1))

    @property
    def is_local(self) -> bool:
        """Whether only clients on the same machine reach it."""
        return urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}

    def values(self) -> dict[str, str]:
        """Return the value of each placeholder that the format of a file quotes."""
        output = self.output
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED_SQUARE}"}}
        limits = {"max_input_tokens": self.longest - output, "max_output_tokens": output}
        known = limits | {"litellm_provider": "openai", "mode": "chat", "supports_vision": self.images}
        return {
            "__BASE_URL__": f"{self.url}/v1",
            "__ROOT_URL__": self.url,
            "__MODEL__": self.model,
            "__CONTEXT__": str(self.longest),
            "__OUTPUT__": str(output),
            "__PROMPT__": str(self.longest - output),
            "__IMAGES__": json.dumps(self.images),
            "__TOOLS__": json.dumps(self.tools),
            "__REASONING__": json.dumps(self.reasoning),
            "__CAPABILITIES__": ", ".join(["tool_use"] * self.tools + ["image_input"] * self.images),
            "__AIDER_MODEL__": json.dumps({f"openai/{self.model}": known}),
            "__CURL_BODY__": self._asks("What is the capital of France?"),
            "__CURL_IMAGE_BODY__": self._asks([{"type": "text", "text": "What colour is this image?"}, picture]),
        }

    def fragments(self) -> dict[str, str]:
        """Return the value of each placeholder that is in the file's format already."""
        return {
            "__KEY_COMMAND__": self.key_command,
            "__CACERT__": "" if self.root is None else f" --cacert {shlex.quote(str(self.root))}",
            "__INPUTS__": '"text", "image"' if self.images else '"text"',
        }


# Characters that YAML and TOML do not take as they are, and JSON does.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


@cache
def clients() -> dict[str, ClientTemplate]:
    """Return every known client by name."""
    written = parse_packaged_yaml(asset_text("connect", "clients.yaml"))
    return TypeAdapter(dict[str, ClientTemplate]).validate_python(written)


def configuration(client: ClientTemplate, place: EndpointFacts) -> str:
    """Return the text to paste, with values quoted for the format of the file."""
    files = (client.file, client.images_file) if client.images_file and place.images else (client.file,)
    text = "".join(asset_text("connect", file) for file in files)
    # shell templates have bare placeholders; in all others they are inside double quotes with JSON's rules
    quote = shlex.quote if client.is_shell else _in_double_quotes
    filled = place.fragments() | {word: quote(value) for word, value in place.values().items()}
    # in one pass: a value may contain another placeholder
    return re.sub("__[A-Z]+(?:_[A-Z]+)*__", lambda found: filled[found[0]], text)


def _in_double_quotes(value: str) -> str:
    """The value as JSON, YAML, TOML and Python read it. TOML has no pairs of escapes, as JSON has for an emoji."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)[1:-1])


def problems_of(client: ClientTemplate, place: EndpointFacts) -> list[str]:
    """What keeps a client from working at this endpoint: a context too small for its first request and the answer."""
    if not client.request or place.context is None or client.request + place.output <= place.context:
        return []
    measured = f"its first request has about {client.request} tokens, and it keeps {place.output} for an answer"
    measured = f"{measured} ({client.source})"
    return [f"the context of {place.context} tokens is too small: {measured}"]


# --- merging into a file of the client
IDENTITIES = ("name", "id", "model_id", "model_name")  # keys that name an entry of a list, in the files of clients


def merged(client: ClientTemplate, path: Path, old: str, new: str) -> str:
    """Return the text of a client's file with a configuration merged into it; all other entries stay.

    Comments stay in TOML and are lost in YAML. Raises FileInvalid if the old text cannot be parsed, or if a TOML file
    has our entries in a form that only a person can change.
    """
    if not old.strip():
        return new
    suffix = Path(client.file).suffix
    try:
        before, ours = _parsed(suffix, old), _parsed(suffix, new)
        if isinstance(ours, dict) and isinstance(before, dict):
            ours = {key: value for key, value in ours.items() if key not in client.keeps or key not in before}
        both = _merged(before, ours)
        if both == before:
            return old
        if suffix == ".toml":
            return _merged_toml(old, ours, both)
    except (Invalid, ValueError, RecursionError) as problem:
        hint = f"correct it, or paste what `dflash-deploy connect` prints without --write into {path.name}"
        raise FileInvalid(f"{shown(path)} {problem}", hint=hint) from None
    if suffix == ".json":
        return json.dumps(both, indent=2, ensure_ascii=False) + "\n"
    return yaml.safe_dump(both, sort_keys=False, allow_unicode=True)


def _parsed(suffix: str, text: str) -> Any:
    if suffix == ".json":
        return parse_json(text)
    if suffix == ".yaml":
        return parse_yaml(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise Invalid(f"is not valid TOML: {problem}") from None


def _merged(old: Any, new: Any) -> Any:
    """`new` on top of `old`: mappings key by key, entries of lists by their names. Raises Invalid for another kind."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old[key], value) if key in old else value for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        # a list of words is one value, such as the kinds of input that a model takes
        return _merged_lists(old, new) if any(isinstance(one, dict) for one in new) else new
    if isinstance(old, dict | list) or (isinstance(new, dict | list) and old is not None):
        raise Invalid("has a list or a mapping where the client reads something else")
    return new


def _merged_lists(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    named = {_identity(one): one for one in new}
    kept = [named.pop(_identity(one), one) for one in old]
    return [*kept, *named.values()]


def _identity(entry: Any) -> object:
    """The name of an entry of a list: the value of its first key of IDENTITIES, or its JSON."""
    named = next((entry[key] for key in IDENTITIES if key in entry), None) if isinstance(entry, dict) else None
    return named if isinstance(named, str) else json.dumps(entry, sort_keys=True, default=str)


def _merged_toml(old: str, ours: Mapping[str, Any], both: Any) -> str:
    """Replace lines and tables of a TOML text, and compare the result with `both`. Raises Invalid if it differs."""
    tables = [f"{above}.{name}" for above, one in ours.items() if isinstance(one, dict) for name in one]
    plain = {key: value for key, value in ours.items() if not isinstance(value, dict)}
    first, rest = _without(old, tables, plain)
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    for table in tables:
        above, _, name = table.partition(".")
        rest += ["", f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in both[above][name].items())]
    text = "\n".join([*first, *lines, "", *rest]).strip("\n") + "\n"
    if _parsed(".toml", text) != both:
        raise Invalid("has these entries in a form that cannot be merged")
    return text


def _toml(value: Any) -> str:
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _without(text: str, tables: Sequence[str], keys: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The lines before the first table without these keys, and the others without these tables."""
    first: list[str] = []
    rest: list[str] = []
    table, removed = "", False
    for line in text.splitlines():
        if found := re.fullmatch(r"\s*\[+\s*([^\]]+?)\s*\]+\s*(?:#.*)?", line):
            table = found[1]
            removed = table in tables
        if not table and line.partition("=")[0].strip() not in keys:
            first.append(line)
        elif table and not removed:
            rest.append(line)
    while first and not first[-1].strip():
        first.pop()
    return first, rest
