"""The routes of llama.cpp's server, and which of them an endpoint answers without its key."""

import httpx

ROUTES = (
    *("/", "/metrics", "/props", "/slots", "/slots/0", "/lora-adapters", "/tools", "/cors-proxy", "/v1/health"),
    *("/models", "/v1/models", "/completion", "/completions", "/v1/completions", "/v1/chat/completions"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings", "/embedding", "/v1/rerank"),
    *("/v1/reranking", "/infill", "/tokenize", "/detokenize", "/apply-template", "/v1/audio/transcriptions"),
    *("/v1/systemone", "/v1/streams/lookup", "/v1/chat/completions/control", "/v1/chat/completions/input_tokens"),
    "/health",
)
"""The routes in the library of b11549."""

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")

HANGS = 300.0
"""Seconds after which a request counts as hung."""


def opened(url: str) -> set[tuple[str, str]]:
    """Each method and route that answers anything but 401 to a request without a key."""
    with httpx.Client(base_url=url, timeout=HANGS, trust_env=False) as client:
        return {
            (method, route)
            for method in METHODS
            for route in ROUTES
            if client.request(method, route).status_code != 401
        }
