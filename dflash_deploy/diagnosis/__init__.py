"""Reads the log of an engine and names the cause of its end."""
