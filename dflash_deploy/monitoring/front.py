"""What Prometheus records in front of the engines, and its alerts: the router, and the endpoint as clients see it."""

from __future__ import annotations

from dflash_deploy.monitoring.alert import Alert, beyond
from dflash_deploy.monitoring.labels import DEPLOYMENT, ENDPOINT_JOB, ROUTER_JOB, WINDOW
from dflash_deploy.monitoring.rule import Recording
from dflash_deploy.serve.settings import Settings

_BY = f"{DEPLOYMENT}, instance"
_BY_WORKER = f"{_BY}, worker"
_ANSWERS = f'sum by ({_BY}) (rate(smg_http_responses_total{{path=~"/v1/.+"}}[{WINDOW}]))'
_FAILURES = f'sum by ({_BY}) (rate(smg_http_responses_total{{path=~"/v1/.+",status_code=~"5.."}}[{WINDOW}]))'

FRONT = (
    Recording(
        "dflash:router:up", f'min by ({_BY}) (up{{job="{ROUTER_JOB}"}})', "0 or 1", "Whether the router answers."
    ),
    Recording(
        "dflash:router:engine_used",
        # -1: removed. smg_worker_stalled is left out: it is 1 under load too, and stays after a removal
        f"min by ({_BY_WORKER}) (smg_worker_health >= 0) * (max by ({_BY_WORKER}) (smg_worker_cb_state) != bool 1)",
        "0 or 1",
        "Whether the router sends requests to an engine of its list: not to one that is unhealthy or fails.",
    ),
    Recording("dflash:router:answers_per_second", _ANSWERS, "1/s", "Answers of the router per second."),
    Recording(
        "dflash:router:failed",
        f"({_FAILURES} or {_ANSWERS} * 0) / ({_ANSWERS} > 0)",
        "share",
        "Share of the router's answers with an HTTP status of 500 or above.",
    ),
    Recording(
        "dflash:endpoint:up",
        f'min by ({_BY}) (probe_success{{job="{ENDPOINT_JOB}"}})',
        "0 or 1",
        "Whether the endpoint answers GET /health as clients reach it.",
    ),
    Recording(
        "dflash:endpoint:certificate_seconds",
        f'min by ({_BY}) (probe_ssl_earliest_cert_expiry{{job="{ENDPOINT_JOB}"}}) - time()',
        "s",
        "How long the certificate of the endpoint stays valid.",
    ),
)
"""Rules for SMG, whose breaker is open at 1, and for blackbox exporter."""

_ROUTER = "a router"
_PROBE = "blackbox exporter"

FRONT_ALERTS = (
    Alert(
        "RouterDown",
        "dflash:router:up == 0",
        "1m",
        "page",
        "the router at {{ $labels.instance }} does not answer",
        "The router ended or hangs, and requests do not reach the engines. In containers the door may have ended "
        "instead, or the key of Prometheus is rejected.",
        "The state of the router, and its lines in the log.",
        "dflash-deploy up",
        needs=_ROUTER,
    ),
    Alert(
        "RouterLostEngine",
        "dflash:router:engine_used == 0",
        "1m",
        "warning",
        "the router sends nothing to {{ $labels.worker }}",
        "The engine ended, hangs, or fails requests. The other engines get its requests.",
        "The state of each engine and the cause that its log names.",
        "dflash-deploy status",
        needs=_ROUTER,
    ),
    Alert(
        "RouterNoEngine",
        # also if no engine is on its list
        f"(max by ({_BY}) (dflash:router:engine_used) or (dflash:router:up > 0) * 0) == 0",
        "30s",
        "page",
        "the router of {{ $labels.deployment }} has no engine left",
        "All engines ended, hang, fail requests, or were stopped. Each request is answered with 503.",
        "The state of each engine and the cause that its log names.",
        "dflash-deploy up",
        needs=_ROUTER,
    ),
    Alert(
        "RouterErrors",
        beyond("dflash:router:failed", ">", "router_failed"),
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the answers of the router are errors",
        "Engines end or reset connections, and other engines do not take their requests over.",
        "Which engine fails: the alerts of the engines, and the lines of the router in the log.",
        "dflash-deploy logs",
        needs=_ROUTER,
    ),
    Alert(
        "EndpointDown",
        "dflash:endpoint:up == 0",
        "2m",
        "page",
        "{{ $labels.instance }} does not answer as clients reach it",
        "The engine does not answer, the door ended, or DNS, a firewall or the certificate changed.",
        f"EndpointDown without EngineDown: {Settings.dflash_domain}, its DNS records, and the ports of the door.",
        "dflash-deploy doctor",
        needs=_PROBE,
    ),
    Alert(
        "CertificateExpires",
        beyond("dflash:endpoint:certificate_seconds", "<", "certificate_seconds"),
        "1h",
        "page",
        "the certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "Caddy renews a certificate when a third of its time is left; this one was not renewed.",
        "What the authority answers: the lines of the door in the log. Port 80 must be reachable from outside.",
        "dflash-deploy doctor",
        needs=_PROBE,
        by_restart=False,
    ),
)
"""Alerts of what is in front of the engines."""
