"""Requests that engines answer differently, and what the endpoint answers instead, on each engine.

The rows are what `docs/reference/endpoint.md` promises. Seen without the gateway: vLLM 0.32.0 and llama.cpp b11549.
"""

import base64
import io
from dataclasses import dataclass
from typing import Any

import httpx
from PIL import Image

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
PDF = base64.b64encode(b"%PDF-1.4").decode()
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def drawn(kind: str) -> str:
    """A green picture in base64."""
    written = io.BytesIO()
    Image.new("RGB", (64, 64), (0, 255, 0)).save(written, kind)
    return base64.b64encode(written.getvalue()).decode()


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message with these parts."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def shown(kind: str) -> dict[str, Any]:
    """A question about a picture of that format."""
    address = {"url": f"data:image/{kind.lower()};base64,{drawn(kind)}"}
    return said({"type": "text", "text": "What colour is this?"}, {"type": "image_url", "image_url": address})


@dataclass(frozen=True)
class Row:
    """A request to a route, and the status and the code of its answer; an empty code for one that is right."""

    name: str
    path: str
    body: dict[str, Any] | None
    status: int
    code: str = ""


ROWS = (
    Row("one model", "/v1/models/tiny", None, 200),
    Row("one model that is not served", "/v1/models/gpt-4", None, 404, "model_not_found"),
    Row("a path that is no route", "/v1/nothing", None, 404, "not_found"),
    Row("another method", CHAT, None, 404, "not_found"),
    Row("embeddings", "/v1/embeddings", {"input": "a"}, 404, "not_found"),
    Row(
        "tools",
        CHAT,
        {"messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}]},
        400,
        "tools_not_supported",
    ),
    Row(
        "tools of Anthropic",
        MESSAGES,
        {"messages": ASKED, "tools": [{"name": "f", "input_schema": {}}]},
        400,
        "tools_not_supported",
    ),
    Row(
        "tools of responses",
        RESPONSES,
        {"input": "a", "tools": [{"type": "function", **FUNCTION}]},
        400,
        "tools_not_supported",
    ),
    Row(
        "tools that must not be called",
        CHAT,
        {"messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"},
        200,
    ),
    Row("more tokens than the context has", CHAT, {"messages": ASKED, "max_tokens": 32000}, 200),
    Row("more tokens, Anthropic", MESSAGES, {"messages": ASKED, "max_tokens": 32000}, 200),
    Row("more tokens, responses", RESPONSES, {"input": ASKED, "max_output_tokens": 32000}, 200),
    Row(
        "a PDF",
        CHAT,
        said({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}}),
        400,
        "document_not_supported",
    ),
    Row(
        "a PDF, Anthropic",
        MESSAGES,
        said({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}),
        400,
        "document_not_supported",
    ),
    Row(
        "a PDF, responses",
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": PDF}]}]},
        400,
        "document_not_supported",
    ),
    Row(
        "a file of the machine",
        CHAT,
        said({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
        400,
        "image_url_refused",
    ),
    Row(
        "an image without an object",
        CHAT,
        said({"type": "image_url", "image_url": "data:image/png;base64,AA=="}),
        400,
        "invalid_image",
    ),
    Row("no messages", MESSAGES, {}, 400),
    Row("effort", CHAT, {"messages": ASKED, "reasoning_effort": "low"}, 200),
    *(Row(f"a picture, {kind}", CHAT, shown(kind), 200) for kind in ("PNG", "WEBP", "TIFF", "AVIF")),
)


def answer(row: Row, url: str, key: str) -> httpx.Response:
    """What an endpoint answers; `model` and, for Anthropic's route, `max_tokens` are added."""
    added = {"model": "tiny", **({"max_tokens": 20} if row.path == MESSAGES else {})}
    method, body = ("GET", None) if row.body is None else ("POST", added | row.body)
    return httpx.request(method, url + row.path, json=body, headers={"api-key": key}, timeout=300)


def problems(url: str, key: str) -> list[str]:
    """The rows that an endpoint does not keep; none is the promise."""
    found = []
    for row in ROWS:
        got = answer(row, url, key)
        error = got.json().get("error") or {}
        if got.status_code != row.status or (row.code and error.get("code") != row.code):
            found.append(f"{row.name}: {got.status_code} {got.text[:200]}")
        if got.status_code >= 400 and (got.json().get("type") == "error") != row.path.startswith(MESSAGES):
            found.append(f"{row.name}: not in the form of its API: {got.text[:200]}")
        if row.name.startswith("a picture") and "green" not in got.text:
            found.append(f"{row.name}: not described: {got.text[:200]}")
        if "tokens" in row.name and "Paris" not in got.text:
            found.append(f"{row.name}: not answered: {got.text[:200]}")
    return found


def obeys_a_schema_of_responses(url: str, key: str) -> bool:
    """Whether /v1/responses answers in the form that `text.format` names."""
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    row = Row("a schema", RESPONSES, {"input": ASKED, "max_output_tokens": 40, "text": {"format": form}}, 200)
    (text,) = (part["text"] for part in answer(row, url, key).json()["output"][-1]["content"])
    return bool(text.lstrip().startswith("{"))
