"""The configuration of Alertmanager: where alerts are sent."""

from __future__ import annotations

from dflash_deploy.monitoring.files import dumped

TEST_LABEL = "test"
"""A label that only a test alert has: each one is a group of its own, so none waits for another."""


def alertmanager_file(webhook: str) -> str:
    """`alertmanager.yml`: all alerts go to one webhook, also when they end. The address may contain a secret."""
    route = {
        "receiver": "webhook",
        "group_by": ["deployment", "alertname", TEST_LABEL],
        "group_wait": "5s",
        "group_interval": "1m",
        "repeat_interval": "4h",
    }
    receiver = {"name": "webhook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
    return dumped({"route": route, "receivers": [receiver]})
