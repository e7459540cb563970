"""How long operations wait for an engine."""

from __future__ import annotations

PATIENCE = 900.0
"""Seconds without a sign of progress after which an engine is given up."""
