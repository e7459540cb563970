"""Configurations for clients, from the templates in connect/. None of them contains the API key."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, TypeAdapter

from dflash_deploy.assets import asset_text
from dflash_deploy.intake.parse import parse_packaged_yaml

KEY_VARIABLE = "DFLASH_API_KEY"
"""The environment variable from which every client reads the API key."""

LONGEST_ANSWER = 32_768
"""Maximum tokens of an answer in a client's configuration; a quarter of the context if that is less."""

SOME_CONTEXT = 32_768
"""Context in tokens in a client's configuration if the deployment leaves it to the engine."""


class ClientTemplate(BaseModel):
    """One client: its template, where the configuration belongs, and whether the client needs tool calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    file: str
    where: str
    note: str = ""
    tools: bool = False


DIRECTORY, FILE = "__DIRECTORY__", "__KEY_FILE__"
KEY_OF_DEPLOYMENT = f"dflash-deploy keys show --reveal --dir {DIRECTORY}"
KEY_OF_FILE = f"cat {FILE}"
"""The commands that print the API key, as the shell templates have them."""


@dataclass(frozen=True)
class EndpointFacts:
    """The facts about an endpoint in a configuration. `url` is without /v1, `context` in tokens.

    `directory` is that of its deployment; `key_file` has the key of an endpoint without one.
    """

    url: str
    model: str
    context: int | None
    directory: str
    key_file: str = ""

    @property
    def key_command(self) -> str:
        """The shell command that prints the API key."""
        found = KEY_OF_FILE if self.key_file else KEY_OF_DEPLOYMENT
        return found.replace(DIRECTORY, shlex.quote(self.directory)).replace(FILE, shlex.quote(self.key_file))

    def values(self) -> dict[str, str]:
        """Return the value of each placeholder of the templates."""
        context = self.context or SOME_CONTEXT
        question = {
            "model": self.model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 100,
        }
        return {
            "__BASE_URL__": f"{self.url}/v1",
            "__ROOT_URL__": self.url,
            "__MODEL__": self.model,
            "__CONTEXT__": str(context),
            "__OUTPUT__": str(min(LONGEST_ANSWER, max(context // 4, 1))),
            DIRECTORY: self.directory,
            FILE: self.key_file,
            "__CURL_BODY__": json.dumps(question),
        }


_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that YAML and TOML do not take as they are, and JSON does."""


@cache
def clients() -> dict[str, ClientTemplate]:
    """Return every known client by name."""
    written = parse_packaged_yaml(asset_text("connect", "clients.yaml"))
    return TypeAdapter(dict[str, ClientTemplate]).validate_python(written)


def configuration(client: ClientTemplate, place: EndpointFacts) -> str:
    """Return the text to paste, with values quoted for the format of the file."""
    text = asset_text("connect", client.file)
    if place.key_file:
        text = text.replace(KEY_OF_DEPLOYMENT, KEY_OF_FILE)
    for word, value in place.values().items():
        # shell templates have bare placeholders; in all others they are inside double quotes with JSON's rules
        quoted = shlex.quote(value) if client.file.endswith(".sh") else _in_double_quotes(value)
        text = text.replace(word, quoted)
    return text


def _in_double_quotes(value: str) -> str:
    """The value as JSON, YAML, TOML and Python read it. TOML has no pairs of escapes, as JSON has for an emoji."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)[1:-1])
