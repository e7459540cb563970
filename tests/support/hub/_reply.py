"""An answer as a value, before anything goes wrong with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.hub._content import Content, Held
from tests.support.hub._ledger import Stage


@dataclass(frozen=True)
class Reply:
    """Status, headers and body. `ranged` says that a Range header may narrow the body."""

    stage: Stage
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content = field(default_factory=lambda: Held(b""))
    file: str = ""
    ranged: bool = False


def document(data: object, **headers: str) -> Reply:
    """A JSON document of the API."""
    content = Held(json.dumps(data).encode())
    return Reply("api", 200, {"Content-Type": "application/json; charset=utf-8", **headers}, content)


def refusal(stage: Stage, status: int, message: str, code: str = "", *, file: str = "", commit: str = "") -> Reply:
    """An error as the hub says it: in its headers, and in a body that is JSON for the API and text for a file."""
    headers = {"X-Error-Message": message, "Content-Type": "text/plain; charset=utf-8"}
    if code:
        headers["X-Error-Code"] = code
    if commit:
        headers["X-Repo-Commit"] = commit
    body = message
    if stage == "api":
        headers["Content-Type"] = "application/json; charset=utf-8"
        body = json.dumps({"error": message})
    return Reply(stage, status, headers, Held(body.encode()), file)


def redirect(stage: Stage, status: int, location: str, *, file: str = "", **headers: str) -> Reply:
    """A redirect, with a body as the hub sends one."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    headers_of = {"Location": location, "Content-Type": "text/plain; charset=utf-8", **named}
    return Reply(stage, status, headers_of, Held(f"Redirecting to {location}".encode()), file)
