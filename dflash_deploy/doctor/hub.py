"""One question to the hub: is it there, does it take the token, and what time is it there?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from dflash_deploy.redact import Secret

HUB = "https://huggingface.co"

TIMEOUT = 5.0
"""Seconds for the hub to answer."""


@dataclass(frozen=True)
class HubAnswer:
    """What came back. `status` is `None` and `problem` says why where nothing did.

    `ahead` is by how much the clock of this machine is before the hub's, `None` where the hub did not say its time.
    """

    status: int | None = None
    problem: str = ""
    ahead: timedelta | None = None


def ask_hub(hub: str, token: Secret, repo: str, *, timeout: float = TIMEOUT) -> HubAnswer:
    """Who am I, where there is a token; else whether the hub knows a repository."""
    path, headers = f"/api/models/{repo}", {}
    if token:
        path, headers = "/api/whoami-v2", {"authorization": f"Bearer {token.reveal()}"}
    try:
        with httpx.Client(timeout=timeout, headers=headers, follow_redirects=not token) as client:
            answer = client.request("GET" if token else "HEAD", f"{hub.rstrip('/')}{path}")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as problem:
        said = str(problem).replace(token.reveal(), "") if token else str(problem)
        return HubAnswer(problem=said or type(problem).__name__)
    return HubAnswer(answer.status_code, ahead=_ahead(answer.headers))


def _ahead(headers: httpx.Headers) -> timedelta | None:
    """This clock less the hub's. An answer out of a cache says how old its date is."""
    try:
        date = parsedate_to_datetime(headers["date"])
        age = int(headers.get("age", "0"))
        return datetime.now(UTC) - date - timedelta(seconds=age)
    except (KeyError, ValueError, TypeError):
        return None
