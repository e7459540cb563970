"""Prometheus beside a deployment: recording rules, alerts and dashboards, whose files are in `monitoring/`."""

from dflash_deploy.registry import Feature

SUMMARY = "Metrics, alerts and dashboards: up, down."
FEATURE = Feature({"monitor": (f"{__name__}.commands", SUMMARY)}, f"{__name__}.operations")
