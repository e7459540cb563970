"""Measuring speed: how fast a served model answers at a concurrency, and how many of its drafts are accepted."""
