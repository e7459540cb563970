"""Measuring speed: tokens per second of a served model under a number of streams."""
