"""The published door: Caddy with TLS in front of the engine's gateway. It knows no key."""
