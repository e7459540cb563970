"""Secrets for the engine, read from the deployment's `.env` at the last moment.

A container gets the file as a read-only mount instead of variables, since what stands in its configuration is shown by
`docker inspect`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

SECRET_NAMES = tuple(field.name for field in Settings.fields() if field.secret)
"""The variables that never appear in an argument list, a container's configuration or a log."""

_ENGINE = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)
"""What the engine gets to know. A token for the hub is for downloading, which is not its business."""

SECRETS_FILE = "DFLASH_SECRETS_FILE"
"""Names the file that holds them."""

KEY = re.compile(r"[A-Za-z0-9_-]{16,}")
"""What a key may look like: written down, it means the same to Compose, python-dotenv and `serve`."""

_LINE = re.compile(
    r"^\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<quote>['\"]?)(?P<value>[^'\"#\s]*)(?P=quote)\s*(#.*)?$"
)


def read_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The engine's secrets that the file named by DFLASH_SECRETS_FILE holds.

    Without that variable, those of the environment. Raises Refused where the file cannot be read, or holds no key: an
    engine without one is open to everybody.
    """
    path = environment.get(SECRETS_FILE)
    if not path:
        return {name: environment[name] for name in _ENGINE if environment.get(name)}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise Refused(
            f"the secrets file {path} cannot be read: {problem.strerror}",
            hint="the container must run as the owner of .env: run `dflash-deploy up` again",
        ) from None
    found = (match for match in map(_LINE.match, lines) if match)
    secrets = {match["name"]: match["value"] for match in found if match["name"] in _ENGINE and match["value"]}
    if Settings.vllm_api_key.name not in secrets:
        raise Refused(
            f"{path} holds no {Settings.vllm_api_key}, and the endpoint would be open to everybody",
            hint=f"write {Settings.vllm_api_key}=KEY, the key made of letters, digits, - and _",
        )
    return secrets


def split_keys(text: str) -> list[str]:
    """The keys of DFLASH_API_KEYS, which stand between commas; a space would belong to a key."""
    return [key for key in text.split(",") if key]


def api_keys(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that the endpoint takes: VLLM_API_KEY, then those of DFLASH_API_KEYS.

    Raises Refused where the first is missing, or where a further one is too short or has characters of its own meaning.
    """
    first = Settings.vllm_api_key.text(environment)
    if not first:
        raise Refused(
            f"there is no {Settings.vllm_api_key}, and without one nobody can ask anything",
            hint=f"set {Settings.vllm_api_key} in .env",
        )
    further = split_keys(Settings.dflash_api_keys.text(environment))
    if not all(map(KEY.fullmatch, further)):
        # which one is not said: it is a secret
        raise Refused(
            f"{Settings.dflash_api_keys} holds a key that is too short or has other characters",
            hint="write 16 letters, digits, - and _ or more for each key, commas between them",
        )
    return (first, *further)
