"""In front of the engine, in its process: the check of API keys, the body limit, and the container's health check."""

# Seconds that a connection may wait for its next request, on every engine. Longer than Caddy keeps an idle one (2
# minutes): who may send, closes first. Here, since engines name it to their servers without importing the gateway.
IDLE_SECONDS = 150.0
