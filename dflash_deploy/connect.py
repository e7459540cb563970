"""Configurations for other people's clients, made of the templates in connect/. None of them holds the key."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, TypeAdapter

from dflash_deploy.assets import asset, read_yaml

KEY_VARIABLE = "DFLASH_API_KEY"
"""The environment variable from which every client takes the key."""

LONGEST_ANSWER = 32_768
"""Tokens of an answer that a client is told to expect at most; a quarter of the context where that is less."""

SOME_CONTEXT = 32_768
"""The context in tokens that a client is told where MAX_MODEL_LEN leaves it to the engine."""


class ClientTemplate(BaseModel):
    """One client: its template, where the configuration belongs, and whether it is of use without tool calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    file: str
    where: str
    note: str = ""
    tools: bool = False


@dataclass(frozen=True)
class EndpointFacts:
    """What a configuration says of an endpoint. `url` is without /v1, `context` in tokens."""

    url: str
    model: str
    context: int | None
    directory: str

    def values(self) -> dict[str, str]:
        """What the words of the templates stand for."""
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
            "__DIRECTORY__": self.directory,
            "__CURL_BODY__": json.dumps(question),
        }


@cache
def clients() -> dict[str, ClientTemplate]:
    """Every client that is known, by its name."""
    written = read_yaml(asset("connect", "clients.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, ClientTemplate]).validate_python(written)


def configuration(client: ClientTemplate, place: EndpointFacts) -> str:
    """The text to paste, its values quoted as the form of the file wants it."""
    text = asset("connect", client.file).read_text(encoding="utf-8")
    for word, value in place.values().items():
        # shell templates have bare words; in all others the words stand between double quotes, whose rules are JSON's
        quoted = shlex.quote(value) if client.file.endswith(".sh") else json.dumps(value)[1:-1]
        text = text.replace(word, quoted)
    return text
