"""The published door: Caddy with TLS in front of the engine's gateway, or of a router. It knows no key."""
