"""`monitor export`: what a Prometheus needs to read a deployment, to record, and to alert."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.assets import asset, asset_text
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE, PUBLIC, write_atomically
from dflash_deploy.deployment.outputs import STATE, check_output, not_written
from dflash_deploy.errors import BadInput, FileRefused, NotPossible
from dflash_deploy.intake.files import MIB, read_text, shown
from dflash_deploy.monitoring.alertmanager import (
    CONFIG_FILE,
    GENERATED,
    NO_RECEIVERS,
    RECEIVER_FILES,
    Receivers,
    alertmanager_files,
)
from dflash_deploy.monitoring.baseline import SPEEDUP
from dflash_deploy.monitoring.containers import (
    ADDRESSES,
    DATA,
    PASSWORD_FILE,
    MonitoringContainers,
    container_files,
)
from dflash_deploy.monitoring.prometheus import (
    INTERVAL,
    KEY_FILE,
    RULE_FILES,
    ScrapeTargets,
    baseline_file,
    limits_file,
    prometheus_file,
)
from dflash_deploy.operations.bench_figures import plain_speed
from dflash_deploy.operations.named_keys import add_key
from dflash_deploy.operations.ranks import refuse_other_ranks
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.scraping import NO_EXPORTERS, Exporters, limits_of, note_older_door, scraped
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import generate_key
from dflash_deploy.runtime.monitoring import PROGRAMS, RETENTION, address_of

CONFIGURATION, COMPOSE_FILE = "prometheus.yml", "docker-compose.yaml"

KEY_NAME = "prometheus"
"""The name of the further key that Prometheus sends."""


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
    exporters: Exporters = NO_EXPORTERS,
    containers: bool = False,
    to: Receivers = NO_RECEIVERS,
    reporter: Reporter = SILENT,
) -> MonitoringExport:
    """Write prometheus.yml, rules, alerts, limits and dashboards for a deployment into `out`, and a key of its own.

    The key opens /metrics only and is in a file of mode 0600. `interval` is in seconds. `containers` adds a Compose
    project with Prometheus, Grafana, exporters, and with receivers (`to`) Alertmanager, all on 127.0.0.1. Raises
    BadInput for an address or a directory that cannot be used, NotPossible if the key's name belongs to a key that
    opens more, NoDeployment, SettingsRefused.
    """
    exporters.checked()
    if to and not containers:
        raise BadInput("receivers of alerts need Alertmanager", hint="add --compose, or use `dflash-deploy monitor up`")
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    check_output(_created(out) / KEY_FILE)
    names = {KEY_FILE, CONFIGURATION, *RULE_FILES, *_packaged(), *(alertmanager_files(to) if to else ())}
    _refuse_files_of_others(out, {*names, COMPOSE_FILE} if containers else names)
    if containers and any(address_of(deployment, program) for program in PROGRAMS):
        reporter.note("`monitor up` runs, and has the same ports: stop it with `dflash-deploy monitor down` first")
    added = with_metrics_key(deployment)
    has_gpu = bool(plan.profile.match.gpus)
    if containers:
        gpus = (*exporters.gpus, ADDRESSES["gpu"]) if has_gpu else exporters.gpus
        exporters = replace(exporters, nodes=(*exporters.nodes, ADDRESSES["node"]), gpus=gpus)
    targets = scraped(deployment, plan, exporters)
    note_older_door(targets, reporter.note)
    sender = ADDRESSES["alertmanager"] if to else None
    texts = monitoring_files(deployment, plan, targets, interval=interval, alertmanager=sender, note=reporter.note)
    private = {KEY_FILE: texts.pop(KEY_FILE)}
    if containers:
        private |= alertmanager_files(to) if to else {}
        private |= {} if (out / PASSWORD_FILE).exists() else {PASSWORD_FILE: f"{generate_key().reveal()}\n"}
        texts |= container_files(_containers(deployment, has_gpu, to))
        _make_data(out)
    # first the one that says whose folder it is: a command that is killed is repeated
    for name, text in {CONFIGURATION: texts[CONFIGURATION], **private, **texts}.items():
        _write(out / name, text, PRIVATE if name in private else PUBLIC)
    if _is_generated(out / CONFIG_FILE):
        _remove(out, set(RECEIVER_FILES) - private.keys())
    texts = private | texts
    return MonitoringExport(out.absolute(), tuple(texts), targets.engines, added)


def _containers(deployment: Deployment, has_gpu: bool, to: Receivers) -> MonitoringContainers:
    return MonitoringContainers(
        deployment.project_name,
        __version__,
        # the owner of the files that are written now: a file secret keeps its owner and mode
        f"{os.geteuid()}:{os.getegid()}",
        RETENTION,
        has_gpu,
        bool(to),
        tuple(name for name in alertmanager_files(to) if name != CONFIG_FILE) if to else (),
    )


def _make_data(out: Path) -> None:
    """Create the directories of data, which Docker would create for root."""
    try:
        for name in DATA:
            (out / "data" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise not_written(out, problem) from None


def monitoring_files(
    deployment: Deployment,
    plan: Plan,
    targets: ScrapeTargets,
    *,
    interval: int,
    note: Callable[[str], None],
    alertmanager: str | None = None,
) -> dict[str, str]:
    """The text of each file that Prometheus needs, the key first. The deployment has the key for it.

    `note` gets the reason if the last figures without drafts are not a baseline.
    """
    plain = plain_speed(deployment, plan)
    if plain.unfit:
        note(
            f"no baseline for `{SPEEDUP}`: the last `bench` without drafts measured {plain.unfit}; "
            "`dflash-deploy bench --baseline` measures this one"
        )
    keys = Deployment.existing(deployment.directory).further_keys
    key = next(key.key for key in keys if key.name == KEY_NAME)
    config = prometheus_file(targets, version=__version__, interval=interval, alertmanager=alertmanager)
    return {
        KEY_FILE: f"{key}\n",
        CONFIGURATION: config,
        "limits.yaml": limits_file(deployment.project_name, limits_of(deployment, plan)),
        "baseline.yaml": baseline_file(deployment.project_name, plain.tpot_seconds),
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


def _packaged() -> Mapping[str, str]:
    """The files that are the same for every deployment."""
    folder = asset("monitoring")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in {".yaml", ".json"})
    return {name: asset_text("monitoring", name) for name in names}


def _refuse_files_of_others(out: Path, names: Collection[str]) -> None:
    """Raise BadInput if a file that will be written exists and this command did not write it."""
    own = _is_generated(out / CONFIGURATION)
    for name in sorted(names):
        path = out / name
        headed = name in {CONFIGURATION, COMPOSE_FILE, CONFIG_FILE}
        if path.exists() and not (_is_generated(path) if headed else own):
            raise BadInput(
                f"{shown(path)} exists, and `monitor export` did not write it",
                hint="choose a new or an empty directory",
            )


def _is_generated(path: Path) -> bool:
    try:
        return read_text(path, limit=MIB, lossy=True).startswith(GENERATED)
    except FileRefused:
        return False


def _remove(folder: Path, names: Collection[str]) -> None:
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as problem:
        raise not_written(folder, problem) from None


def _write(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(check_output(path), text, mode=mode)
    except OSError as problem:
        raise not_written(path, problem) from None
