"""One request to the Hugging Face Hub: whether it responds, whether it accepts the token, and its clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ssl import SSLContext

import httpx

from dflash_deploy.errors import DeployError, SettingsRefused
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.redact import Secret
from dflash_deploy.weights.hub import authorization
from dflash_deploy.weights.hub_errors import is_page, refusal, unreachable
from dflash_deploy.weights.source import Source

TIMEOUT = 5.0
"""Seconds for the Hub to respond."""


@dataclass(frozen=True)
class HubAnswer:
    """The response of the Hub. `status` is `None` without a response; `problem` says why, or why it is a refusal.

    `ahead` is this machine's clock minus the Hub's; `None` if the response has no date. `fix` is the next step.
    """

    status: int | None = None
    problem: str = ""
    ahead: timedelta | None = None
    fix: str = ""


def ask_hub(hub: str, token: Secret, repo: str, *, timeout: float = TIMEOUT) -> HubAnswer:
    """Request the repository as `pull` does. The Hub rejects an invalid token for public repositories too."""
    answer, error = None, None
    try:
        source = Source.of(token, hub)
        with new_client(timeout=timeout, headers=authorization(token)) as client:
            request = client.build_request("HEAD", f"{source.endpoint}/api/models/{repo}")
            answer = fetch_answer(client, request, seconds=2 * timeout, redirects=True)
        if not answer.succeeded or is_page(answer.headers):
            error = refusal(answer.status, answer.headers, answer.url, source, repo)
    except httpx.HTTPError as problem:
        error = unreachable(problem, source)
    except DeployError as problem:
        error = problem
    said, fix = (error.message, error.hint) if error else ("", "")
    return HubAnswer(answer.status, said, _ahead(answer.headers), fix) if answer else HubAnswer(problem=said, fix=fix)


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
