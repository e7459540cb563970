"""The routes of the router of several engines, which has no API description to read them from.

Source: SMG 1.13, model_gateway/src/server.rs, and the paths in its library. `x` is any word. Its administration has a
key of its own, which no client has.
"""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path

Route = tuple[str, str]

RELEASE = "1.13"
"""The release whose routes these are."""

_CLIENTS: tuple[Route, ...] = (
    *(("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "messages", "responses", "embeddings")),
    *(("POST", f"/v1/{name}") for name in ("classify", "rerank", "tokenize", "detokenize", "interactions")),
    *(("POST", path) for path in ("/generate", "/rerank", "/v1/audio/transcriptions")),
    *(("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x"), ("POST", "/v1/responses/x/cancel")),
    *(("GET", "/v1/responses/x/input_items"), ("POST", "/v1/conversations")),
    *((method, "/v1/conversations/x") for method in ("GET", "POST", "DELETE")),
    *((method, "/v1/conversations/x/items") for method in ("GET", "POST")),
    *((method, "/v1/conversations/x/items/x") for method in ("GET", "DELETE")),
    *(("GET", "/v1/realtime"), ("POST", "/v1/realtime/calls"), ("POST", "/v1/realtime/sessions")),
    *(("POST", f"/v1/realtime/{name}") for name in ("client_secrets", "transcription_sessions")),
)

_PUBLIC: tuple[Route, ...] = tuple(
    ("GET", path)
    for path in (
        *("/health", "/liveness", "/readiness", "/health_generate", "/engine_metrics", "/loads"),
        *("/v1/models", "/get_model_info", "/get_server_info"),
    )
)

_ADMINISTRATION: tuple[Route, ...] = (
    *((method, "/workers") for method in ("GET", "POST")),
    *((method, "/workers/x") for method in ("GET", "PUT", "PATCH", "DELETE")),
    *(("POST", path) for path in ("/flush_cache", "/start_profile", "/stop_profile", "/heap_profile")),
    *(("GET", "/get_loads"), ("POST", "/parse/function_call"), ("POST", "/parse/reasoning")),
    *(("GET", "/wasm"), ("POST", "/wasm"), ("DELETE", "/wasm/x")),
    *((method, "/v1/tokenizers") for method in ("GET", "POST")),
    *((method, "/v1/tokenizers/x") for method in ("GET", "DELETE")),
    ("GET", "/v1/tokenizers/x/status"),
)

ROUTES = (*_CLIENTS, *_PUBLIC, *_ADMINISTRATION)
"""Each method with its path."""

OPEN: frozenset[Route] = frozenset(
    {
        *(("GET", path) for path in ("/health", "/liveness", "/readiness", "/v1/models", "/engine_metrics", "/loads")),
        # keeps nothing, and answers with a new name: SMG's history is off
        ("POST", "/v1/conversations"),
    }
)
"""What it answers with 200 to every user of the machine, without a key."""

_UNKNOWN = '"code":"unknown_url"'


def is_installed() -> bool:
    """Whether the installed SMG is the release whose routes these are, and its library has their paths."""
    found = util.find_spec("smg")
    if found is None or found.origin is None or not metadata.version("smg").startswith(f"{RELEASE}."):
        return False
    (library,) = Path(found.origin).parent.glob("*.so")
    code = library.read_bytes()
    return all(path.split("/x")[0].encode() in code for _, path in ROUTES)


def exists(status: int, text: str) -> bool:
    """Whether an answer is not the one that SMG gives to an unknown path."""
    return not (status == 404 and _UNKNOWN in text)
