"""The dashboards as JSON for Grafana, generated from the panels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_deploy.monitoring import front_panels, key_panels, machine_panels, panels
from dflash_deploy.monitoring.panel import CHOSEN, Panel

SCHEMA_VERSION = 39
"""Of Grafana's dashboards: Grafana 10.4 and later read it, and convert it themselves."""

HEIGHT, COLUMNS = 8, 24
"""Of a panel, in rows of Grafana's grid; and the width of the grid."""

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: the name of its file, its title, and its panels in their order."""

    name: str
    title: str
    panels: Sequence[Panel]


DASHBOARDS = (
    Dashboard(
        "overview",
        "DFlash: overview",
        (
            panels.UP,
            panels.STARTED,
            panels.ALERTS_FIRING,
            panels.LENGTH_NOW,
            panels.TOKENS,
            panels.REQUESTS,
            panels.TPOT,
            panels.TTFT,
            key_panels.REQUESTS_BY_KEY,
        ),
    ),
    Dashboard(
        "speculative-decoding",
        "DFlash: speculative decoding",
        (panels.LENGTH, panels.SPEEDUP, panels.BY_POSITION, panels.DRAFTS, panels.WASTED, panels.RATE, panels.TPOT),
    ),
    Dashboard(
        "capacity",
        "DFlash: capacity",
        (panels.LOAD, panels.QUEUE, panels.PREFILL, panels.QUEUE_TIME, panels.KV, panels.PREEMPTIONS),
    ),
    Dashboard(
        "machine",
        "DFlash: machine",
        (
            machine_panels.MEMORY,
            machine_panels.CPU,
            machine_panels.DISK,
            machine_panels.GPU_TEMPERATURE,
            machine_panels.GPU_POWER,
            machine_panels.GPU_BUSY,
            machine_panels.FABRIC,
        ),
    ),
    Dashboard(
        "keys",
        "DFlash: keys",
        (
            key_panels.KEY_TOKENS,
            key_panels.KEY_PROMPTS,
            key_panels.KEY_STATUS,
            key_panels.KEY_FLIGHT,
            key_panels.REFUSED,
        ),
    ),
    Dashboard(
        "front",
        "DFlash: router and endpoint",
        (
            front_panels.ROUTER_UP,
            front_panels.ROUTER_ENGINES,
            front_panels.ENDPOINT_UP,
            front_panels.CERTIFICATE,
            front_panels.ROUTER_ANSWERS,
            front_panels.ROUTER_FAILED,
        ),
    ),
)


def dashboard_files() -> Mapping[str, str]:
    """The text of each dashboard by its path in `monitoring/`."""
    return {f"dashboards/{one.name}.json": dashboard_text(one) for one in DASHBOARDS}


def dashboard_text(of: Dashboard) -> str:
    """One dashboard as Grafana imports it."""
    document = {
        "uid": f"dflash-{of.name}",
        "title": of.title,
        "tags": ["dflash"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": [_STARTS]},
        "templating": {"list": [_SOURCES, _DEPLOYMENTS]},
        "links": [{"type": "dashboards", "tags": ["dflash"], "title": "DFlash", "asDropdown": True}],
        "panels": list(_placed(of.panels)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _placed(of: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """The panels from left to right, in rows."""
    x = y = 0
    for number, panel in enumerate(of, 1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + HEIGHT
        yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": HEIGHT})
        x += panel.width


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": curve.expr, "legendFormat": curve.legend}
        for index, curve in enumerate(panel.curves)
    ]
    # a unit that Grafana does not know is written behind the number
    unit = f"suffix: {panel.unit}" if "/" in panel.unit else panel.unit
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": f"{panel.says}\n\nIf it is red: {panel.red}",
        "gridPos": dict(place),
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": targets,
    }


_SOURCES = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_DEPLOYMENTS = {
    "name": "deployment",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": {"query": "label_values(dflash:up, deployment)", "refId": "deployment"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}
_STARTS = {
    "name": "Starts",
    "datasource": _DATASOURCE,
    "enable": True,
    "iconColor": "blue",
    "expr": f"changes(dflash:start_time_seconds{{{CHOSEN}}}[1m]) > 0",
    "titleFormat": "started",
    "textFormat": "{{deployment}} {{replica}}",
}
"""Marks in every panel: an engine was started."""
