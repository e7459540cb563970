"""Commands, options and settings of earlier versions, and what to do instead: the hint of the error that names one."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.serve.settings import Settings

_FLEET = "run the command on the host: `ssh HOST dflash-deploy …`; docs/how-to/several-machines.md"
_FILE = "--file names the file of hosts, which you write; docs/reference/fleet.yaml is an example"
_DP = f"set {Settings.data_parallel_size}: the engine's own copies behind one port; docs/how-to/run-several-engines.md"
_RAY = (
    f"remove it: vLLM joins two machines without Ray ({Settings.nodes}, {Settings.node_rank}, {Settings.master_addr})"
)
_ONE = "a deployment is one engine: leave the option out"
_DOMAIN = "remove it: compose.override.yaml changes the service `door`; docs/how-to/serve-under-a-domain.md"
_AGENTS = "`bench --workload agents --concurrency 4`: four conversations, with as many turns as the context holds"
_SCHEDULE = f"leave it out: vLLM gets a schedule if it is the best; `set {Settings.dflash_spec_schedule}=` removes it"

# By spelling: `COMMAND`, `COMMAND --option` or `SETTING`. A spelling that still exists never gets here.
GONE: Mapping[str, str] = {
    "capacity": "measure with `bench --concurrency N`; docs/how-to/plan-capacity.md",
    "bench --trace": "aiperf and guidellm replay traces; docs/how-to/plan-capacity.md",
    "bench --share": "`make proof SHARE=FILE` writes what can be published; docs/how-to/report-a-failure.md",
    "bench --agents": _AGENTS,
    "bench --turns": _AGENTS,
    "bench --warmup": "leave it out: each client sends one request before a measurement",
    "tune --mtp": "`bench --baseline --mtp 2` compares the target's MTP head with the drafter",
    "tune --schedule": _SCHEDULE,
    "tune --no-schedule": _SCHEDULE,
    "tune --temperature": "leave it out: tune is greedy",
    "tune --patience": "leave it out: a restart fails after the usual time without progress",
    "tune --replica": _ONE,
    "bench --patience": "leave it out: a restart fails after the usual time without progress",
    "export compose": "a deployment is a plain Compose project: copy its directory; docs/how-to/move-offline.md",
    "export kubernetes": "`export ray` writes rayservice.yaml for KubeRay; docs/how-to/run-on-ray.md",
    "init --replicas": _DP,
    "plan --replicas": _DP,
    "up --replica": _ONE,
    "restart --replica": _ONE,
    "logs --replica": _ONE,
    "test --replica": _ONE,
    "bench --replica": _ONE,
    "models update": "install a newer dflash-deploy, then run `upgrade`; `models add` takes further models",
    "models use --dry-run": "leave it out: the command shows what changes, and asks",
    "models use --patience": "leave it out: the limit is 15 minutes without a sign of progress",
    "upgrade --dry-run": "`upgrade --check` shows what would change",
    "upgrade --engine": "`init --force --engine NAME` writes all settings again",
    "upgrade --model": "`models use NAME` serves another model",
    "upgrade --patience": "leave it out: the limit is 15 minutes without a sign of progress",
    "upgrade --recipe": "`init --force --recipe NAME` writes all settings again",
    "monitor status": "open Prometheus or Alertmanager, whose addresses `monitor up` prints",
    "monitor test": "open Alertmanager, whose address `monitor up` prints",
    "monitor export": "copy .dflash/monitor, the Compose project that `monitor up` writes",
    "plan --as": "`plan --json` has the engine's command; docs/how-to/run-unattended.md",
    "run --as": "docs/how-to/run-unattended.md has a systemd unit and an entry of llama-swap",
    "pull --to": "copy the weights with `rsync` or `hf download`; docs/how-to/move-offline.md",
    "pull --from": "copy the weights with `rsync` or `hf download`; docs/how-to/move-offline.md",
    "fleet restart": _FLEET,
    **{f"fleet {name} --host": _FLEET for name in ("up", "status", "logs", "test", "down")},
    **{f"fleet {name} --dir": _FILE for name in ("init", "up", "status", "logs", "test", "down")},
    "REPLICAS": _DP,
    "ROUTER_ENGINES": "remove it: `export ray` shares requests between machines; docs/how-to/run-on-ray.md",
    "DFLASH_CORES": "remove it: one engine uses all cores",
    "DRAIN_SECONDS": "remove it: `run` waits at most 45 s for requests in progress",
    "DISTRIBUTED_EXECUTOR": _RAY,
    "RAY_ADDRESS": _RAY,
    "OMP_WAIT_POLICY": "remove it: vLLM's CPU build always waits passively",
    "DFLASH_DRAFT_WINDOW": f"set {Settings.extra_args}=--speculative-draft-window-size N",
    "RECORD_SHAPES": "remove it: docs/how-to/plan-capacity.md says how to measure a load",
    "DFLASH_HTTP_PORT": _DOMAIN,
    "DFLASH_HTTPS_PORT": _DOMAIN,
    "DFLASH_ACME_URL": _DOMAIN,
    "DFLASH_ACME_ROOT": _DOMAIN,
}
