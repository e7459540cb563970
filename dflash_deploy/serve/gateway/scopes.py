"""What a key opens, by its scope."""

from __future__ import annotations

from dflash_deploy.serve.api_keys import Scope

LIVENESS = "/health"
"""The one open path, for the container's health check and for load balancers."""

METRICS = "/metrics"

ENGINE_HANGS = "engine_hangs"
"""The code of the error that /health answers if the engine makes no progress."""

KEY_NAME = "X-Dflash-Key"
"""The header of an answer with the name of the key. Caddy writes it to its log and takes it out."""

REPEATED = "X-Request-Id-Dflash-Routed"
"""The header of a request through a router that repeats answers with 429. The door sets it.

Of unknown headers, SMG passes on only those that begin with X-Request-Id."""

LIMITED = "X-Dflash-Limited"
"""The header of the answer above a limit to such a request, whose status is then UNREPEATED. The door makes it 429."""

UNREPEATED = 403
"""A status that a router passes on as it is."""

INFERENCE = frozenset(
    {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/realtime",
        "/tokenize",
        "/detokenize",
    }
)
"""Routes of applications: they generate, or say what the model and its tokens are.

All others are the owner's: they show or change the engine, as vLLM's /metrics, /load and /sleep do, or are another name
of one of these."""

BELOW = ("/v1/models/", "/v1/responses/")
"""Paths of single models and answers begin with these."""


def opens(scope: Scope, method: str, path: str) -> bool:
    """Whether a key of this scope opens a route. `path` is %-decoded, as the router sees it."""
    if scope == "all":
        return True
    if scope == "metrics":
        return path == METRICS and method in {"GET", "HEAD"}
    return path in INFERENCE or (path.startswith(BELOW) and "/." not in path and "//" not in path)
