"""Commands, options and settings of earlier versions, and what to do instead: the hint of the error that names one."""

from __future__ import annotations

from collections.abc import Mapping

_FLEET = "`fleet up --file FILE` runs the program that is installed on each host; docs/how-to/several-machines.md"
_DP = "set DATA_PARALLEL_SIZE: the engine's own copies behind one port; docs/how-to/run-several-engines.md"
_ONE = "a deployment is one engine: leave the option out"
_DOMAIN = "edit .dflash/door/Caddyfile or set it in compose.override.yaml; docs/how-to/serve-under-a-domain.md"

GONE: Mapping[str, str] = {
    "capacity": "measure with `bench --concurrency N`; docs/how-to/plan-capacity.md",
    "bench --trace": "aiperf and guidellm replay traces; docs/how-to/plan-capacity.md",
    "bench --share": "`make proof SHARE=FILE` writes what can be published; docs/how-to/report-a-failure.md",
    "export": "a deployment is a plain Compose project: copy its directory; docs/how-to/move-offline.md",
    "init --replicas": _DP,
    "plan --replicas": _DP,
    "up --replica": _ONE,
    "restart --replica": _ONE,
    "logs --replica": _ONE,
    "test --replica": _ONE,
    "bench --replica": _ONE,
    "models update": "install a newer dflash-deploy, then run `upgrade`; `models add` takes further models",
    "monitor status": "open Prometheus or Alertmanager, whose addresses `monitor up` prints",
    "monitor test": "open Alertmanager, whose address `monitor up` prints",
    "monitor silence": "open Alertmanager, whose address `monitor up` prints",
    "monitor export": "copy the folder monitoring/, which is a Compose project",
    "plan --as": "`plan --json` has the engine's command; docs/how-to/run-unattended.md",
    "run --as": "docs/how-to/run-unattended.md has a systemd unit and an entry of llama-swap",
    "pull --to": "copy the weights with `rsync` or `hf download`; docs/how-to/move-offline.md",
    "pull --from": "copy the weights with `rsync` or `hf download`; docs/how-to/move-offline.md",
    "fleet prepare": "install the program on each host first; docs/how-to/several-machines.md",
    "REPLICAS": _DP,
    "ROUTER_ENGINES": "remove it: several hosts share requests behind Ray Serve or a proxy of yours",
    "DFLASH_CORES": "remove it: one engine uses all cores",
    "DRAIN_SECONDS": "remove it: `run` waits at most 45 s for requests in progress",
    "DISTRIBUTED_EXECUTOR": "remove it: vLLM joins two machines without Ray (NODES, NODE_RANK, MASTER_ADDR)",
    "RAY_ADDRESS": "remove it: vLLM joins two machines without Ray (NODES, NODE_RANK, MASTER_ADDR)",
    "RECORD_SHAPES": "remove it: docs/how-to/plan-capacity.md says how to measure a load",
    "DFLASH_HTTP_PORT": _DOMAIN,
    "DFLASH_HTTPS_PORT": _DOMAIN,
    "DFLASH_ACME_URL": _DOMAIN,
    "DFLASH_ACME_ROOT": _DOMAIN,
}
"""By spelling: `COMMAND`, `COMMAND --option` or `SETTING`. A spelling that still exists never gets here."""
