"""`monitor up` and `monitor down`: the Compose project of `monitoring/` beside a deployment, in .dflash/monitor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

import httpx

from dflash_deploy.assets import asset
from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, PUBLIC, not_written, write_if_changed
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import CommandData, Documented
from dflash_deploy.errors import BadInput, EngineMissing, EngineNotReady, NotPossible, PortTaken
from dflash_deploy.host.ask import container_engine, elsewhere, project_containers
from dflash_deploy.host.ports import listener_on
from dflash_deploy.intake.files import MIB, read_text, shown
from dflash_deploy.operations.keys import add_key
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import generate_key
from dflash_deploy.runtime.compose import compose_environment, run_command
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.startup.engine import published_of, url_of

# Its files that differ between deployments: names with a dollar sign are filled in.
FILLED = ("prometheus.yml", "limits.yaml", "blackbox/blackbox.yml")
# The receivers of alerts, a person's file, and the password of Grafana's user `admin`.
WRITTEN_ONCE = ("alertmanager/alertmanager.yml", "grafana.password")
COMPOSE_FILE, ENV_FILE, ROOT_FILE = "docker-compose.yaml", ".env", "blackbox/root.crt"
KEY_NAME, KEY_FILE = "prometheus", "metrics.key"  # the further key that Prometheus sends; it opens /metrics only
HOST = "127.0.0.1"
SERVICES = {"PROMETHEUS": 9090, "ALERTMANAGER": 9093, "GRAFANA": 3000, "NODE": 9100, "GPU": 9400, "BLACKBOX": 9115}
# The ports on 127.0.0.1, unless `.env` of the project has others.
PORTS = {f"{service}_PORT": str(port) for service, port in SERVICES.items()}
READY_WITHIN = 120.0  # seconds until a service must answer; on an idle machine one takes less than one


@dataclass(frozen=True)
class MonitoringStarted(Documented):
    """What runs beside the deployment."""

    prometheus: str
    """URL of Prometheus."""
    alertmanager: str
    """URL of Alertmanager."""
    grafana: str
    """URL of Grafana."""


@dataclass(frozen=True)
class MonitoringStopped(Documented):
    """What `monitor down` did."""

    stopped: bool
    """Whether there was something to stop."""


DOCUMENTS = {"monitor up": CommandData((MonitoringStarted,)), "monitor down": CommandData((MonitoringStopped,))}


def monitoring_folder(deployment: Deployment) -> Path:
    """The Compose project of a deployment, with its data."""
    return deployment.state / "monitor"


def project_name(deployment: Deployment) -> str:
    """The name of the Compose project."""
    return f"{deployment.project_name}-monitoring"


def start_monitoring(directory: Path, *, interval: int = 15, reporter: Reporter = SILENT) -> MonitoringStarted:
    """Write the project of a deployment, with a key for Prometheus, and start it. `interval` is in seconds.

    Raises EngineMissing after the files are written, PortTaken, EngineNotReady, NotPossible, NoDeployment, BadInput.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    add_metrics_key(deployment)
    folder = monitoring_folder(deployment)
    with command_lock(deployment, "monitor up"):
        write_project(deployment, plan, interval)
        if (other := elsewhere(container_engine().host)) is not None:
            raise EngineMissing(other[0], hint=other[1])
        ports = ports_of(folder)
        runs = project_containers(project_name(deployment))
        for name, port in () if runs else ports.items():
            if listener_on(HOST, int(port)):
                raise PortTaken(f"port {port} is taken", hint=f"set another {name} in {shown(folder / ENV_FILE)}")
        # a container keeps reading the file that it was started with, and files are replaced
        _compose(deployment, "up", "--detach", "--remove-orphans", "--force-recreate", note=reporter.note)
        urls = [f"http://{HOST}:{ports[f'{name}_PORT']}" for name in ("PROMETHEUS", "ALERTMANAGER", "GRAFANA")]
        for url in urls[:2]:
            _wait_ready(url, folder)
    return MonitoringStarted(*urls)


def stop_monitoring(directory: Path) -> MonitoringStopped:
    """Remove the containers and keep their data. Raises EngineMissing, NoDeployment."""
    deployment = Deployment.existing(directory, check=False)
    file = monitoring_folder(deployment) / COMPOSE_FILE
    if not file.is_file():
        return MonitoringStopped(False)
    container_engine()
    with command_lock(deployment, "monitor down"):
        _compose(deployment, "down", "--remove-orphans")
        file.unlink(missing_ok=True)
    return MonitoringStopped(True)


def add_metrics_key(deployment: Deployment) -> None:
    """Give Prometheus a key if it has none. Raises NotPossible if a key of its name opens more than /metrics."""
    scopes = {key.name: key.scope for key in deployment.further_keys}
    if KEY_NAME not in scopes:
        add_key(deployment.directory, KEY_NAME, scope="metrics")
    elif scopes[KEY_NAME] != "metrics":
        hint = f"revoke it with `dflash-deploy keys revoke {KEY_NAME}`, then run the command again"
        raise NotPossible(f"the key `{KEY_NAME}` opens more than /metrics", hint=hint)


def write_project(deployment: Deployment, plan: Plan, interval: int) -> None:
    """Write the files for a deployment that has the key; ports, receivers and the password stay. Raises BadInput."""
    folder, place, published = monitoring_folder(deployment), asset("monitoring"), published_of(deployment, plan)
    unified, gpus, ports = plan.profile.hardware.unified, bool(plan.profile.match.gpus), ports_of(folder)
    values = {
        **ports,
        "deployment": deployment.project_name,
        "interval": interval,
        "engine": url_of(plan).removeprefix("http://"),
        "gpu": f"{HOST}:{ports['GPU_PORT']}" if gpus else "",
        "endpoint": f"{published.url}{LIVENESS}" if published else "",
        "trusted": f"ca_file: /etc/{ROOT_FILE}" if published and published.trusted else "",
        "queue": plan.settings.max_num_seqs or USUAL_SEQUENCES,
        "drafts": int(plan.speculating),
        "ttft_seconds": 5 if unified else 2,
        "memory_available_bytes": (4 if unified else 1) << 30,
        "certificate_seconds": 2 * 3600 if published and published.root else 7 * 86400,
    }
    texts = {str(file.relative_to(place)): file.read_text("utf-8") for file in place.rglob("*") if file.is_file()}
    texts |= {name: Template(texts[name]).substitute(values) for name in FILLED}
    if published and published.trusted:
        texts[ROOT_FILE] = read_text(published.trusted, limit=MIB)
    keys = {key.name: key.key for key in Deployment.existing(deployment.directory).further_keys}
    private = {KEY_FILE: f"{keys[KEY_NAME]}\n", "grafana.password": f"{generate_key().reveal()}\n"}
    profiles = ",".join(name for name, wanted in (("gpu", gpus), ("domain", published)) if wanted)
    # the owner of the files: a file secret keeps its owner and mode
    own = {"COMPOSE_PROFILES": profiles, "OWNER": f"{os.geteuid()}:{os.getegid()}", **ports}
    own["COMPOSE_PROJECT_NAME"] = project_name(deployment)
    texts[ENV_FILE] = "".join(f"{name}={value}\n" for name, value in own.items())
    try:
        for service in ("prometheus", "alertmanager", "grafana"):
            # Docker would create it for root
            (folder / "data" / service).mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in {**texts, **private}.items():
            if not (name in WRITTEN_ONCE and (folder / name).exists()):
                (folder / name).parent.mkdir(exist_ok=True)
                write_if_changed(folder / name, text, mode=PRIVATE if name in {*private, *WRITTEN_ONCE} else PUBLIC)
    except OSError as problem:
        raise not_written(folder, problem) from None


def ports_of(folder: Path) -> dict[str, str]:
    """The ports by their variable, as `.env` of the folder has them. Raises BadInput for one that is not valid."""
    file = folder / ENV_FILE
    written = dotenv.parse(read_text(file, limit=MIB)) if file.exists() else {}
    found = {name: written.get(name, usual) for name, usual in PORTS.items()}
    for name, value in found.items():
        if not value.isdecimal() or not 1 <= int(value) <= 65535:
            raise BadInput(f"{name}=`{value}` is not a valid port (1-65535)", hint=f"edit {shown(file)}")
    return found


def _compose(deployment: Deployment, *words: str, note: Callable[[str], None] | None = None) -> None:
    folder = monitoring_folder(deployment)
    written = [name for name in os.environ if name.startswith("COMPOSE_") or name in {"OWNER", *PORTS}]
    command = ["docker", "compose", "--project-directory", str(folder), *words]
    run_command(deployment, words[0], command, folder, compose_environment(os.environ, written), note)


def _wait_ready(url: str, folder: Path) -> None:
    until = time.monotonic() + READY_WITHIN
    while time.monotonic() < until:
        with suppress(httpx.TransportError):
            # not through a proxy of the environment: it is on this machine
            if httpx.get(f"{url}/-/ready", trust_env=False, timeout=READY_WITHIN).is_success:
                return
        time.sleep(0.2)
    raise EngineNotReady(f"{url} does not answer", hint=f"read `docker compose --project-directory {folder} logs`")
