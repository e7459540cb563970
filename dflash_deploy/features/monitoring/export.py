"""`monitor export`: the files with which Prometheus reads a deployment, records, and alerts.

The files include the limits of the alerts. Receivers of alerts are given as for `monitor up`: addresses, and files that
hold keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from dflash_deploy import __version__
from dflash_deploy.assets import asset, asset_text
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, PUBLIC, STATE, check_output, not_written, write_atomically
from dflash_deploy.door.caddyfile import ROUTER_METRICS_PATH, metrics_path
from dflash_deploy.errors import BadInput, FileRefused, NotPossible
from dflash_deploy.features.monitoring.files import (
    ADDRESSES,
    ALERTMANAGER_GENERATED,
    CONFIG_FILE,
    DATA,
    INTERVAL,
    KEY_FILE,
    NO_RECEIVERS,
    PASSWORD_FILE,
    RECEIVER_FILES,
    RULE_FILES,
    Mail,
    MonitoringContainers,
    Receivers,
    ScrapeTargets,
    Webhook,
    alertmanager_files,
    container_files,
    prometheus_file,
)
from dflash_deploy.features.monitoring.programs import PROGRAMS, RETENTION, address_of
from dflash_deploy.features.monitoring.rules import (
    FOLDER,
    SPEEDUP,
    MonitoringLimits,
    baseline_file,
    limits,
    limits_file,
)
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.files import MIB, read_argument, read_text, shown
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.bench import plain_speed
from dflash_deploy.operations.keys import add_key
from dflash_deploy.operations.replicas import refuse_other_ranks
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.replicas import LOOPBACK, router_metrics_port
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.startup.engine import url_of
from dflash_deploy.startup.members import METRICS_TIMEOUT, engine_endpoints, published_of, whole_url

LONGEST_KEY = 4096
"""Bytes of a file that holds a key."""

MOST_PORT = 65535

_MAILBOX = re.compile(r"[^\s@<>,;:\"]{1,64}@[^\s@<>,;:\"]{1,255}")
_SERVER = re.compile(r"(?:[\w.-]{1,255}|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


def receivers(
    *,
    webhook: str | None = None,
    webhook_file: Path | None = None,
    webhook_token_file: Path | None = None,
    ntfy: str | None = None,
    ntfy_file: Path | None = None,
    ntfy_token_file: Path | None = None,
    mail: str | None = None,
    mail_from: str | None = None,
    smtp: str | None = None,
    smtp_user: str | None = None,
    smtp_password_file: Path | None = None,
) -> Receivers:
    """The receivers that were asked for, checked. A key, or an address that is a secret, is read from its file.

    Raises BadInput for an address that is not valid or a part that is missing, and FileRefused for a file of a key.
    """
    if mail is None and any((mail_from, smtp, smtp_user, smtp_password_file)):
        raise BadInput("mail has no address to send to", hint="add --mail NAME@HOST")
    return Receivers(
        _http("webhook", _address("webhook", webhook, webhook_file), webhook_token_file),
        None if mail is None else _mail(mail, mail_from, smtp, smtp_user, smtp_password_file),
        _topic(_http("ntfy", _address("ntfy", ntfy, ntfy_file), ntfy_token_file)),
    )


def _address(name: str, url: str | None, file: Path | None) -> str | None:
    if file is None:
        return url
    if url is not None:
        raise BadInput(f"--{name} and --{name}-file exclude each other", hint="leave out one of them")
    return _only_line(file, "the URL")


def _http(name: str, url: str | None, token_file: Path | None) -> Webhook | None:
    if url is None:
        if token_file is not None:
            raise BadInput(f"--{name}-token-file has no --{name} that it is for", hint=f"add --{name} URL")
        return None
    what = "the webhook" if name == "webhook" else "the ntfy topic"
    hint = "expected http://HOST:PORT/PATH or https://HOST/PATH"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    # the address may contain a secret, so it is not repeated
    if not valid or any(character.isspace() or not character.isprintable() for character in url):
        raise BadInput(f"{what} is not a valid URL", hint=hint)
    return Webhook(url, _key(token_file))


def _topic(ntfy: Webhook | None) -> Webhook | None:
    if ntfy is not None and not urlsplit(ntfy.url).path.strip("/"):
        raise BadInput("the ntfy URL has no topic", hint="expected https://ntfy.sh/TOPIC")
    if ntfy is not None and urlsplit(ntfy.url).fragment:
        raise BadInput("the ntfy URL has a `#` after its topic", hint="expected https://ntfy.sh/TOPIC")
    return ntfy


def _mail(to: str, sender: str | None, server: str | None, user: str | None, password: Path | None) -> Mail:
    for address in (to, sender or to):
        if not _MAILBOX.fullmatch(address):
            raise BadInput(f"`{address}` is not a valid mail address", hint="expected NAME@HOST")
    server = server or "127.0.0.1:25"
    if not _SERVER.fullmatch(server) or not 1 <= int(server.rpartition(":")[2]) <= MOST_PORT:
        # what precedes an @ may be a password
        named = "the mail server is not valid" if "@" in server else f"`{server}` is not a valid mail server"
        raise BadInput(named, hint="expected HOST:PORT, as smtp.example.com:587")
    if (user is None) != (password is None):
        raise BadInput("--smtp-user and --smtp-password-file belong together", hint="set both, or neither")
    return Mail(to, sender or to, server, user or "", _key(password))


def _key(path: Path | None) -> Secret | None:
    return None if path is None else Secret(_only_line(path, "the key"))


def _only_line(path: Path, what: str) -> str:
    text = read_argument(path, limit=LONGEST_KEY).strip()
    hint = f"expected a file that holds {what} and nothing else"
    if not text:
        raise BadInput(f"{path} is empty", hint=hint)
    if not text.isprintable():
        raise BadInput(f"{path} has several lines or control characters", hint=hint)
    return text


_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


@dataclass(frozen=True)
class Exporters:
    """Exporters beside a deployment, as HOST:PORT: node exporters, DCGM exporters, and a blackbox exporter."""

    nodes: Sequence[str] = ()
    gpus: Sequence[str] = ()
    blackbox: str = ""

    def checked(self) -> Exporters:
        """The same. Raises BadInput for an address that is not valid."""
        for address in filter(None, (*self.nodes, *self.gpus, self.blackbox)):
            if not _ADDRESS.fullmatch(address) or not 1 <= int(address.rpartition(":")[2]) <= MOST_PORT:
                raise BadInput(f"`{address}` is not a valid address: expected HOST:PORT", hint="such as 127.0.0.1:9100")
        return self


NO_EXPORTERS = Exporters()


def scraped(deployment: Deployment, plan: Plan, exporters: Exporters = NO_EXPORTERS) -> ScrapeTargets:
    """What Prometheus reads: the engines of a deployment, its router, and exporters."""
    return ScrapeTargets(
        deployment.project_name,
        tuple(_addresses(deployment, plan)),
        exporters.nodes,
        exporters.gpus,
        _router(deployment, plan) if plan.settings.several_engines else "",
        exporters.blackbox,
        f"{whole_url(deployment, plan)}{LIVENESS}" if exporters.blackbox else "",
    )


def note_older_door(targets: ScrapeTargets, note: Callable[[str], None]) -> None:
    """Say it if the door that runs is of an earlier version, which does not publish the metrics of its engines."""
    # earlier versions published no router, and those before them no engine
    place = targets.router or next(iter(targets.engines), "")
    if "/" not in place:
        return
    # any key: without one the door answers 401 on every path
    with new_client(trust_env=False, headers={"Authorization": "Bearer none"}, timeout=METRICS_TIMEOUT) as client:
        try:
            answer = fetch_answer(client, client.build_request("GET", f"http://{place}"), seconds=METRICS_TIMEOUT)
        except (httpx.HTTPError, Invalid):
            # it does not run
            return
    if answer.status == httpx.codes.NOT_FOUND:
        note(f"the door does not publish http://{place}: it is of an earlier version; run `dflash-deploy up`")


def limits_of(deployment: Deployment, plan: Plan) -> MonitoringLimits:
    """When the alerts of a deployment fire."""
    published = published_of(deployment, plan)
    return limits(
        sequences=plan.settings.max_num_seqs or USUAL_SEQUENCES,
        speculating=plan.speculating,
        unified=plan.profile.hardware.unified,
        private_authority=published is not None and published.root is not None,
    )


def _router(deployment: Deployment, plan: Plan) -> str:
    """The metrics of the router: in a container at a path of the door, with a key."""
    if plan.runtime == "compose":
        return f"{_door(deployment, plan)}{ROUTER_METRICS_PATH}"
    return f"{LOOPBACK}:{router_metrics_port(plan.settings.dflash_port)}"


def _door(deployment: Deployment, plan: Plan) -> str:
    return url_of(deployment, plan).removeprefix("http://")


def _addresses(deployment: Deployment, plan: Plan) -> Iterator[str]:
    """The address of each engine: a router before several of them has no metrics of an engine.

    Of several in containers it is a path of their door: a container that restarts may get another address.
    """
    if plan.settings.several_engines and plan.runtime == "compose":
        door = _door(deployment, plan)
        yield from (f"{door}{metrics_path(number)}" for number in range(1, plan.settings.replicas + 1))
        return
    for endpoint in engine_endpoints(deployment, plan, timeout=METRICS_TIMEOUT):
        with endpoint:
            yield endpoint.url.removeprefix("http://")


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
    dashboards = sorted(f"dashboards/{path.name}" for path in asset(FOLDER, "dashboards").iterdir())
    return {name: asset_text(FOLDER, name) for name in ("alerts.yaml", *dashboards, "rules.yaml")}


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
        return read_text(path, limit=MIB, lossy=True).startswith(ALERTMANAGER_GENERATED)
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
