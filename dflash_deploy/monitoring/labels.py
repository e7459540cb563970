"""The labels that a scrape job sets, and which all recorded series keep."""

from __future__ import annotations

DEPLOYMENT = "deployment"
"""The name of a deployment: that of its directory."""
REPLICA = "replica"
"""The number of an engine of the deployment, from 1."""
TARGET = (DEPLOYMENT, REPLICA, "instance")
"""The labels of one engine."""
BY_TARGET = ", ".join(TARGET)
BY_ENGINE = f"{BY_TARGET}, engine"
"""The labels of each recorded series of an engine: the target, and `engine`, the prefix of its metric names."""
WINDOW = "2m"
"""The window of rates: eight samples at the interval of 15 s."""
SLOW_WINDOW = "5m"
"""The window of quantiles: a histogram of few requests says little."""
JOB = "dflash"
"""The scrape job of the engines."""
ROUTER_JOB, ENDPOINT_JOB = f"{JOB}-router", f"{JOB}-endpoint"
"""The scrape jobs of the router, and of the endpoint through blackbox exporter."""
