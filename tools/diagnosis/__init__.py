"""Failures of other people and healthy logs, and how well the diagnosis names them: `make score-diagnosis`."""
