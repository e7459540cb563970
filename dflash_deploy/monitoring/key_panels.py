"""The panels of the API keys: who sends requests, how many tokens they get, and which are refused."""

from __future__ import annotations

from dflash_deploy.monitoring.panel import CHOSEN, Curve, Panel, of_limit, series

REQUESTS_BY_KEY = Panel(
    "Requests by key",
    (Curve(f"sum by (name) (dflash:key:requests_per_second{{{CHOSEN}}})", "{{name}}"),),
    "reqps",
    "Who sends requests, by the name of the key.",
    "dflash-deploy keys add can give a key a limit.",
)
KEY_TOKENS = Panel(
    "Generated tokens by key",
    (Curve(f"sum by (name) (dflash:key:tokens_per_second{{{CHOSEN}}})", "{{name}}"),),
    "tokens/s",
    "Generated tokens per second by the name of the key.",
    "One key that uses all: give it a limit of tokens per minute.",
)
KEY_PROMPTS = Panel(
    "Tokens read by key",
    (Curve(f"sum by (name) (dflash:key:prompt_tokens_per_second{{{CHOSEN}}})", "{{name}}"),),
    "tokens/s",
    "Tokens of prompts per second by the name of the key.",
    "Long prompts delay the answers of others: give the key a limit.",
)
KEY_STATUS = Panel(
    "Requests by status",
    (Curve(f"sum by (name, status) (dflash:key:requests_per_second{{{CHOSEN}}})", "{{name}} {{status}}"),),
    "reqps",
    "Requests by key and HTTP status.",
    "429: the key is at its limit. 5xx: dflash-deploy status. cancelled: clients left before the end.",
)
KEY_FLIGHT = Panel(
    "Requests in flight by key",
    (Curve(f"sum by (name) (dflash:key:in_flight{{{CHOSEN}}})", "{{name}}"),),
    "short",
    "Requests at this moment by the name of the key.",
    "If one key fills the queue, limit its requests in flight.",
)
REFUSED = Panel(
    "Refused requests",
    (series("refused_per_second"), of_limit("refused_per_second")),
    "reqps",
    "Requests without a valid key.",
    "A client sends an old key, or a client guesses keys: the runbook of RequestsRefused says which log has addresses.",
)
