"""The panels of the dashboard of what is in front of the engines: the router, and the endpoint as clients see it."""

from __future__ import annotations

from dflash_deploy.monitoring.panel import BY_MACHINE, CHOSEN, Curve, Panel, of_limit, series

ROUTER_ENGINES = Panel(
    "Engines that the router uses",
    (
        Curve(
            f"sum by (deployment) (dflash:router:engine_used{{{CHOSEN}}}) "
            f"or sum by (deployment) (dflash:router:up{{{CHOSEN}}}) * 0",
            "{{deployment}}",
        ),
    ),
    "none",
    "How many engines the router sends requests to.",
    "dflash-deploy status shows the state of each engine.",
    kind="stat",
    width=6,
)
ROUTER_UP = Panel(
    "Router",
    (series("router:up", "{{deployment}}"),),
    "none",
    "1 if the router answers.",
    "dflash-deploy up starts it again.",
    kind="stat",
    width=6,
)
ENDPOINT_UP = Panel(
    "Endpoint",
    (series("endpoint:up", BY_MACHINE),),
    "none",
    "1 if the endpoint answers as clients reach it.",
    "dflash-deploy doctor checks the domain, its records and ports.",
    kind="stat",
    width=6,
)
CERTIFICATE = Panel(
    "Certificate",
    (series("endpoint:certificate_seconds", BY_MACHINE),),
    "s",
    "How long the certificate stays valid.",
    "Caddy did not renew it: dflash-deploy doctor.",
    kind="stat",
    width=6,
)
ROUTER_ANSWERS = Panel(
    "Answers of the router",
    (series("router:answers_per_second", "{{deployment}}"),),
    "reqps",
    "Answers of the router per second.",
    "None although clients ask: dflash-deploy status.",
)
ROUTER_FAILED = Panel(
    "Errors of the router",
    (series("router:failed", "{{deployment}}"), of_limit("router_failed")),
    "percentunit",
    "Share of the answers with an HTTP status of 500 or above.",
    "dflash-deploy logs shows which engine fails.",
)
