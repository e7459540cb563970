"""The routes of llama.cpp's server, which has no API description to read them from.

Source: llama.cpp tools/server/server.cpp, with those of older releases and of the buun fork. `x` is any word.
"""

from __future__ import annotations

_READ = (
    *("/", "/health", "/v1/health", "/metrics", "/props", "/models", "/v1/models", "/models/sse", "/api/tags"),
    *("/lora-adapters", "/slots", "/v1/stream", "/cors-proxy", "/tools"),
)

_WRITTEN = (
    *("/props", "/api/show", "/completion", "/completions", "/v1/completions", "/models", "/models/load"),
    *("/models/unload", "/chat/completions", "/v1/chat/completions", "/api/chat", "/v1/chat/completions/control"),
    *("/responses", "/v1/responses", "/audio/transcriptions", "/v1/audio/transcriptions", "/v1/messages", "/infill"),
    *("/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    *("/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens", "/responses/input_tokens"),
    *("/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/v1/messages/count_tokens"),
    *("/lora-adapters", "/slots/x", "/v1/streams/lookup", "/v1/systemone", "/cors-proxy", "/tools"),
)

ROUTES = (
    *(("GET", path) for path in _READ),
    *(("POST", path) for path in _WRITTEN),
    *(("DELETE", path) for path in ("/models", "/v1/stream")),
)
"""Each method with its path."""
