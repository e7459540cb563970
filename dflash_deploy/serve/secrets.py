"""Secrets for the engine, read from the deployment's `.env` at the last moment.

A container gets the file as a read-only mount instead of variables, since what stands in its configuration is shown by
`docker inspect`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dflash_deploy.serve.refusal import Refused

SECRET_NAMES = ("VLLM_API_KEY", "HF_TOKEN")
"""The variables that never appear in an argument list, a container's configuration or a log."""

_ENGINE = ("VLLM_API_KEY",)
"""What the engine gets to know. A token for the hub is for downloading, which is not its business."""

SECRETS_FILE = "DFLASH_SECRETS_FILE"
"""Names the file that holds them."""

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
    if "VLLM_API_KEY" not in secrets:
        raise Refused(
            f"{path} holds no VLLM_API_KEY, and the endpoint would be open to everybody",
            hint="write VLLM_API_KEY=KEY, the key made of letters, digits, - and _",
        )
    return secrets
