"""Reads the log of an engine and names the cause of its end: docs/explanation/diagnosis.md works one log through."""
