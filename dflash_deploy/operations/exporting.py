"""`monitor export`: what a Prometheus needs to read a deployment, to record, and to alert."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.assets import asset, asset_text
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE, PUBLIC, write_atomically
from dflash_deploy.deployment.outputs import STATE, check_output, not_written
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.monitoring.limits import MonitoringLimits, limits
from dflash_deploy.monitoring.prometheus import INTERVAL, KEY_FILE, ScrapeTargets, limits_file, prometheus_file
from dflash_deploy.operations.named_keys import add_key
from dflash_deploy.operations.ranks import refuse_other_ranks
from dflash_deploy.plan import Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.members import METRICS_TIMEOUT, engine_endpoints

KEY_NAME = "prometheus"
"""The name of the further key that Prometheus sends."""

_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


@dataclass(frozen=True)
class MonitoringExport:
    """The files that `monitor export` wrote. `key_added`: the deployment got a key for Prometheus."""

    directory: Path
    files: Sequence[str]
    targets: Sequence[str]
    key_added: bool

    def document(self) -> dict[str, object]:
        """The `data` of `monitor export --json`; no key is in it."""
        return {
            "directory": str(self.directory),
            "files": list(self.files),
            "targets": list(self.targets),
            "key": KEY_NAME,
            "key_added": self.key_added,
        }


def export_monitoring(
    directory: Path,
    out: Path,
    *,
    interval: int = INTERVAL,
    nodes: Sequence[str] = (),
    gpus: Sequence[str] = (),
) -> MonitoringExport:
    """Write prometheus.yml, rules, alerts, limits and dashboards for a deployment into `out`, and a key of its own.

    The key opens /metrics only and is in a file of mode 0600. `interval` is in seconds; `nodes` and `gpus` are the
    addresses (HOST:PORT) of node exporters and DCGM exporters. Raises BadInput for an address or a directory that
    cannot be used, NotPossible if the key's name belongs to a key that opens more, NoDeployment, SettingsRefused.
    """
    for address in (*nodes, *gpus):
        if not _ADDRESS.fullmatch(address):
            raise BadInput(f"`{address}` is not a valid address: expected HOST:PORT", hint="such as 127.0.0.1:9100")
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    check_output(_created(out) / KEY_FILE)
    added = with_metrics_key(deployment)
    engines = tuple(_addresses(deployment, plan))
    targets = ScrapeTargets(deployment.project_name, engines, nodes, gpus)
    texts = monitoring_files(deployment, plan, targets, interval=interval)
    for name, text in texts.items():
        _write(out / name, text, PRIVATE if name == KEY_FILE else PUBLIC)
    return MonitoringExport(out.absolute(), tuple(texts), engines, added)


def scraped(deployment: Deployment, plan: Plan) -> ScrapeTargets:
    """The engines of a deployment, as Prometheus reads them."""
    return ScrapeTargets(deployment.project_name, tuple(_addresses(deployment, plan)))


def monitoring_files(
    deployment: Deployment, plan: Plan, targets: ScrapeTargets, *, interval: int, alertmanager: str | None = None
) -> dict[str, str]:
    """The text of each file that Prometheus needs, the key first. The deployment has the key for it."""
    keys = Deployment.existing(deployment.directory).further_keys
    key = next(key.key for key in keys if key.name == KEY_NAME)
    config = prometheus_file(targets, version=__version__, interval=interval, alertmanager=alertmanager)
    return {
        KEY_FILE: f"{key}\n",
        "prometheus.yml": config,
        "limits.yaml": limits_file(deployment.project_name, _limits(plan)),
        **_packaged(),
    }


def _created(out: Path) -> Path:
    """The directory, created if it is missing. `check_output` is for files in one that exists."""
    if STATE in out.absolute().parts:
        raise BadInput(f"{out} is a directory of a deployment", hint="choose another directory")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise not_written(out, problem) from None
    return out


def with_metrics_key(deployment: Deployment) -> bool:
    """Give Prometheus a key if it has none; return whether it was added. Raises NotPossible."""
    known = next((key for key in deployment.further_keys if key.name == KEY_NAME), None)
    if known is None:
        add_key(deployment.directory, KEY_NAME, scope="metrics")
        return True
    if known.scope != "metrics":
        raise NotPossible(
            f"the key `{KEY_NAME}` opens more than /metrics",
            hint=f"revoke it with `dflash-deploy keys revoke {KEY_NAME}`, then run the command again",
        )
    return False


def _addresses(deployment: Deployment, plan: Plan) -> Iterator[str]:
    """The address of each engine: a router before several of them has no metrics of an engine. Raises NotPossible."""
    if plan.settings.several_engines and plan.runtime == "compose":
        raise NotPossible(
            "several engines in containers have no address that stays: a restarted container may get another one",
            hint="read them with `dflash-deploy status`, or run them with `init --runtime native`",
        )
    for endpoint in engine_endpoints(deployment, plan, timeout=METRICS_TIMEOUT):
        with endpoint:
            yield endpoint.url.removeprefix("http://")


def _limits(plan: Plan) -> MonitoringLimits:
    return limits(
        sequences=plan.settings.max_num_seqs or USUAL_SEQUENCES,
        speculating=plan.speculating,
        unified=plan.profile.hardware.unified,
    )


def _packaged() -> Mapping[str, str]:
    """The files that are the same for every deployment."""
    folder = asset("monitoring")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in {".yaml", ".json"})
    return {name: asset_text("monitoring", name) for name in names}


def _write(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(check_output(path), text, mode=mode)
    except OSError as problem:
        raise not_written(path, problem) from None
