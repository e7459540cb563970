"""One request to the Hugging Face Hub: whether it responds, whether it accepts the token, and its clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ssl import SSLContext

import httpx

from dflash_deploy.errors import SettingsRefused
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.redact import Secret

HUB = "https://huggingface.co"

TIMEOUT = 5.0
"""Seconds for the Hub to respond."""


@dataclass(frozen=True)
class HubAnswer:
    """The response of the Hub. Without a response `status` is `None` and `problem` says why.

    `ahead` is this machine's clock minus the Hub's; `None` if the response has no date.
    """

    status: int | None = None
    problem: str = ""
    ahead: timedelta | None = None


def ask_hub(hub: str, token: Secret, repo: str, *, timeout: float = TIMEOUT) -> HubAnswer:
    """With a token, request the account of the token; without one, request the repository."""
    path, headers = f"/api/models/{repo}", {}
    if token:
        path, headers = "/api/whoami-v2", {"authorization": f"Bearer {token.reveal()}"}
    try:
        with new_client(timeout=timeout, headers=headers) as client:
            request = client.build_request("GET" if token else "HEAD", f"{hub.rstrip('/')}{path}")
            answer = fetch_answer(client, request, seconds=2 * timeout, redirects=not token)
    except SettingsRefused as problem:
        return HubAnswer(problem=f"{problem.message}; {problem.hint}")
    except httpx.InvalidURL:
        return HubAnswer(problem="HF_ENDPOINT is not a valid URL")
    except (httpx.HTTPError, ValueError) as problem:
        said = str(problem).replace(token.reveal(), "") if token else str(problem)
        return HubAnswer(problem=said[:300] or type(problem).__name__)
    return HubAnswer(answer.status, ahead=_ahead(answer.headers))


def ask_date(url: str, trust: SSLContext | None = None, *, timeout: float = TIMEOUT) -> HubAnswer:
    """The response of any URL; `trust` replaces the public authorities."""
    try:
        with new_client(timeout=timeout, verify=trust or True) as client:
            answer = fetch_answer(client, client.build_request("GET", url), seconds=2 * timeout)
    except SettingsRefused as problem:
        return HubAnswer(problem=f"{problem.message}; {problem.hint}")
    except (httpx.HTTPError, httpx.InvalidURL, Invalid, ValueError) as problem:
        return HubAnswer(problem=str(problem)[:300] or type(problem).__name__)
    return HubAnswer(answer.status, ahead=_ahead(answer.headers))


def _ahead(headers: httpx.Headers) -> timedelta | None:
    """This clock minus the Hub's. The header `age` of a cached response is subtracted."""
    try:
        date = parsedate_to_datetime(headers["date"])
        age = int(headers.get("age", "0"))
        return datetime.now(UTC) - date - timedelta(seconds=age)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
