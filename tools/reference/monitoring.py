"""The pages of alerts, with their runbooks, and of recorded metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from dflash_deploy.assets import asset_text
from dflash_deploy.serve.engines import ENGINES
from tools.reference.markdown import BUILT, GENERATED, code, joined, table

_ALERTS = """# Alerts

`dflash-deploy monitor up` gives Prometheus these {count} alerts. Each one compares
[recorded metrics](metrics.md) with the limits of the deployment. `page`: requests fail or soon will. `warning`: the
deployment is slower than it could be, or will fail if nothing changes. `alerts.yaml` has the conditions.
[Monitor](../how-to/monitor.md) shows the setup.

Each alert fires in a test on series with its fault, and on no others. Five of them reach a webhook from a real
llama.cpp server that is overloaded or killed, and EngineHangs from the real vLLM.

{generated}
"""

_METRICS = f"""# Recorded metrics

The rules of `monitoring/rules.yaml` give the metrics of all engines the same names. Alerts and dashboards use only
these.
Each series has the labels `deployment` and `instance` of the scrape job. Series of an engine also have the label
`engine`.

{BUILT.format(source="`monitoring/rules.yaml`")}
"""


# A recording rule with what is said about it.
_COMMENT = re.compile(r"  # (?P<said>.+)\n  - record: (?P<name>\S+)\n")


def _said(file: str) -> dict[str, str]:
    """The comment above each recorded series; of a series with several rules, the one above the first."""
    return {one["name"]: one["said"] for one in _COMMENT.finditer(asset_text("monitoring", file))}


def _rules(file: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(asset_text("monitoring", file))["groups"]:
        yield from group["rules"]


def alerts() -> str:
    """The page of alerts: a table, the limits, and a runbook for each."""
    known = list(_rules("alerts.yaml"))
    rows = (
        (
            f"[{one['alert']}](#{one['alert'].lower()})",
            one["labels"]["severity"],
            one["for"],
            one["annotations"].get("needs", "the engine"),
        )
        for one in known
    )
    limits = ((code(name), meaning) for name, meaning in _said("limits.yaml").items())
    generated = GENERATED.format(source="`monitoring/alerts.yaml` and `limits.yaml`")
    parts = [_ALERTS.format(count=len(known), generated=generated)]
    parts += [*table(("alert", "severity", "after", "needs"), rows)]
    parts += ["\n## Limits\n", "`limits.yaml` of `.dflash/monitor` has them for the deployment.\n"]
    parts += [*table(("series", "value"), limits), "\n## Runbooks\n"]
    return joined(*parts, *map(_runbook, known))


def _runbook(alert: dict[str, Any]) -> str:
    cause, _, check = alert["annotations"]["description"].partition(" Check: ")
    return "\n".join(
        (
            f"### {alert['alert']}\n",
            f"- **Cause**: {cause}",
            f"- **Check**: {check}",
            f"- **Command**: `{alert['annotations']['command']}`",
            "",
        )
    )


def metrics() -> str:
    """The page of recorded metrics: one row for each name, with the engines that have it."""
    records: dict[str, list[dict[str, Any]]] = {}
    for rule in _rules("rules.yaml"):
        records.setdefault(rule["record"], []).append(rule)
    said = {name: one.partition(": ") for name, one in _said("rules.yaml").items()}
    rows = ((code(name), said[name][0], _source(rules), said[name][2]) for name, rules in records.items())
    return joined(_METRICS, *table(("metric", "unit", "from", "meaning"), rows))


# What a recorded metric is from, by a part of its expression.
_SOURCES = {
    "node_": "node exporter",
    "DCGM_": "DCGM exporter",
    "probe_": "blackbox exporter",
}


def _source(rules: list[dict[str, Any]]) -> str:
    if "labels" not in rules[0]:
        read = rules[0]["expr"]
        return next((source for prefix, source in _SOURCES.items() if prefix in read), "all engines")
    titles = {engine.metrics.prefix: engine.title for engine in reversed(list(ENGINES.values()))}
    known = [titles[rule["labels"]["engine"]] for rule in rules]
    return "all engines" if len(known) == len(titles) else ", ".join(known)
