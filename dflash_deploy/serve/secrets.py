"""Secrets for the engine, read from the deployment's `.env` at the last moment.

A container gets the file as a read-only mount instead of variables, since `docker inspect` shows its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

# The variables that never appear in an argument list, a container's configuration or a log.
SECRET_NAMES = tuple(field.name for field in Settings.fields() if field.secret)

# The secrets that the engine gets. It downloads nothing, and so does not get the token for the Hugging Face Hub.
_ENGINE = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)

SECRETS_FILE = "DFLASH_SECRETS_FILE"  # the variable with the path of the file that holds them

_LINE = re.compile(
    r"^\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<quote>['\"]?)(?P<value>[^'\"#\s]*)(?P=quote)\s*(#.*)?$"
)


def read_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The engine's secrets in the file that DFLASH_SECRETS_FILE names; without that variable, those in the environment.

    Raises Refused if the file cannot be read or holds no key: an engine without a key answers any client.
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
            f"{path} holds no valid {Settings.vllm_api_key}: the endpoint would answer any client",
            hint=f"set {Settings.vllm_api_key} to a key of letters, digits, - and _",
        )
    return secrets
