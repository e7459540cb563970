"""The pages of alerts, with their runbooks, and of recorded metrics."""

from __future__ import annotations

from dflash_deploy.features.monitoring.rules import ALERTS, BASELINE, MEANING, Alert, Recording, groups, limit
from dflash_deploy.serve.engines import ENGINES
from tools.reference.markdown import GENERATED, code, joined, table

_ALERTS = f"""# Alerts

`dflash-deploy monitor export` writes these {len(ALERTS)} alerts for your Prometheus. Each one compares
[recorded metrics](metrics.md) with the limits of the deployment. `page`: requests fail or soon will. `warning`: the
deployment is slower than it could be, or will fail if nothing changes. `alerts.yaml` has the conditions.
[Monitor](../how-to/monitor.md) shows the setup.

Each alert fires in a test on series with its fault, and on no others (`tests/processes/monitoring`). Twelve of them
reach a webhook from two real llama.cpp servers that are overloaded, hung or killed, with shorter times
(`tests/parsers`), and EngineHangs from the real vLLM, whose core is stopped (`tests/engine`).

{GENERATED.format(source="`dflash_deploy/features/monitoring/rules.py`")}
"""

_METRICS = f"""# Recorded metrics

The rules of `monitoring/rules.yaml` give the metrics of all engines the same names. Alerts and dashboards use only
these.
Each series has the labels `deployment`, `replica` and `instance` of the scrape job. Series of an engine also have the
label `engine`.

`baseline.yaml` of an export has `{BASELINE}`: the time per output token
without speculative decoding at the concurrency of the engine, from the last `bench` with `--baseline`. If that run did
not measure it, the file has no rule, and `dflash:speedup_over_plain` has no series.

{GENERATED.format(source="`dflash_deploy/features/monitoring/rules.py`")}
"""


def alerts() -> str:
    """The page of alerts: a table, the limits, and a runbook for each."""
    rows = (
        (f"[{one.name}](#{one.name.lower()})", one.severity, one.lasts, one.needs or "the engine") for one in ALERTS
    )
    limits = ((code(limit(name)), meaning) for name, meaning in MEANING.items())
    parts = [_ALERTS, *table(("alert", "severity", "after", "needs"), rows)]
    parts += ["\n## Limits\n", "`limits.yaml` of an export has them for its deployment.\n"]
    parts += [*table(("series", "value"), limits), "\n## Runbooks\n"]
    return joined(*parts, *(_runbook(alert) for alert in ALERTS))


def _runbook(alert: Alert) -> str:
    return "\n".join(
        (
            f"### {alert.name}\n",
            f"- **Cause**: {alert.cause}",
            f"- **Check**: {alert.check}",
            f"- **Command**: `{alert.command}`",
            "",
        )
    )


def metrics() -> str:
    """The page of recorded metrics: one row for each name, with the engines that have it."""
    records: dict[str, list[Recording]] = {}
    for group in groups():
        for rule in group.rules:
            records.setdefault(rule.record, []).append(rule)
    rows = ((code(name), rules[0].unit, _source(rules), rules[0].says) for name, rules in records.items())
    return joined(_METRICS, *table(("metric", "unit", "from", "meaning"), rows))


_SOURCES = {
    "node_": "node exporter",
    "DCGM_": "DCGM exporter",
    "smg_": "the router",
    "dflash-router": "the router",
    "probe_": "blackbox exporter",
}
"""What a recorded metric is from, by a part of its expression."""


def _source(rules: list[Recording]) -> str:
    if not rules[0].engine:
        read = rules[0].expr
        return next((source for prefix, source in _SOURCES.items() if prefix in read), "all engines")
    titles = {engine.metrics.prefix: engine.title for engine in reversed(list(ENGINES.values()))}
    known = [titles[rule.engine] for rule in rules]
    return "all engines" if len(known) == len(titles) else ", ".join(known)
