"""Start a deployment: preflight, start, wait for the first answer."""

PATIENCE = 900.0  # seconds without a sign of progress after which an engine is given up
