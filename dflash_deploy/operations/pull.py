"""`pull` and `models convert gguf`: target and drafter fetched and checked, and a drafter converted.

`pull` also compares the models of a deployment with the Hub. `models convert gguf` makes a
GGUF of a drafter's safetensors, with llama.cpp's own tools in its container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE, check_output
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import Count, Documented, Hidden
from dflash_deploy.errors import BadInput, ConversionFailed, FilesMissing, NotPossible, PreflightRefused
from dflash_deploy.host.machine import read_facts
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.rules.table import CHECKPOINT_RULES, judge
from dflash_deploy.serve.engines.llamacpp import Llamacpp, LlamacppBuun
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.ahead import read_hub_metadata
from dflash_deploy.weights.checkpoints import HubMetadata
from dflash_deploy.weights.convert import DRAFTER, OUT, TARGET, Conversion
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.fetch import fetch
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lock import Lock, Role, read_lock, write_lock
from dflash_deploy.weights.pull import (
    RequestedModel,
    lock_for,
    network_is_refused,
    newer_commits,
    requested_models,
    require_all,
    wrong_files,
)


@dataclass(frozen=True)
class FetchedModel(Documented):
    """One model on disk."""

    role: Role
    """What the model is for."""
    repo: str
    """Repository id on the Hugging Face Hub."""
    commit: str
    """Commit of the repository."""
    directory: Path
    """Directory that has the files."""
    bytes: Count
    """Size of all files in bytes."""
    there: Count
    """Files that were present already."""
    reused: Count
    """Files that came from the cache of the Hub client."""
    fetched: Count
    """Files that were downloaded."""


@dataclass(frozen=True)
class Pulled(Documented):
    """The models of the deployment, present and verified."""

    lock_file: Hidden[Path]
    models: tuple[FetchedModel, ...]
    """Target and drafter; empty if both come with dflash-deploy."""


def pull(directory: Path, *, update: bool = False, reporter: Reporter = SILENT) -> Pulled:
    """Fetch what a deployment lacks and write dflash.lock; interrupted downloads resume.

    `update` moves to the newest commits. Raises PreflightRefused if target and drafter do not match, DirectoryBusy, and
    DownloadFailed, among them FilesMissing if HF_HUB_OFFLINE is set.
    """
    deployment, wanted = _wanted(directory)
    if not wanted:
        return Pulled(deployment.directory / LOCK_FILE, ())
    with command_lock(deployment, "pull"):
        return fetch_missing(deployment, wanted, update=update, reporter=reporter)


def fetch_missing(
    deployment: Deployment,
    wanted: Iterable[RequestedModel],
    *,
    update: bool = False,
    reporter: Reporter,
) -> Pulled:
    """What `pull` does, for a caller that holds the deployment and knows what it wants.

    Configuration and GGUF headers are read first: weights that do not match are refused before they are fetched.
    """
    if network_is_refused():
        return _without_network(deployment, wanted, update=update, reporter=reporter)
    source = hub_of(deployment)
    lock = lock_for(wanted, _lock(deployment), source, update=update)
    _refuse_mismatch(deployment, read_hub_metadata(source, wanted, lock))
    write_lock(deployment.directory / LOCK_FILE, lock)
    with reporter.transferring(_size(lock)) as count:
        options = DownloadOptions(count)
        models = tuple(_fetched(source, requested, lock, options) for requested in wanted)
    return Pulled(deployment.directory / LOCK_FILE, models)


def _without_network(
    deployment: Deployment, wanted: Iterable[RequestedModel], *, update: bool, reporter: Reporter
) -> Pulled:
    """The models if all files of dflash.lock are on this machine. Raises FilesMissing, and BadInput for `update`."""
    _refuse_network(update, "--update")
    reporter.note("HF_HUB_OFFLINE is set: nothing is downloaded, as with `pull --offline`")
    lock = _lock(deployment)
    try:
        require_all(wanted, lock)
    except FilesMissing as problem:
        raise FilesMissing(problem.message, hint=f"{problem.hint}, and without HF_HUB_OFFLINE") from None
    models = {} if lock is None else lock.models
    there = ((requested, models[requested.role]) for requested in wanted)
    return Pulled(
        deployment.directory / LOCK_FILE,
        tuple(
            FetchedModel(one.role, model.repo, model.commit, one.directory, model.size, len(model.files), 0, 0)
            for one, model in there
        ),
    )


def _refuse_network(asked: bool, option: str) -> None:
    if asked and network_is_refused():
        raise BadInput(f"{option} needs the network, but HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")


@dataclass(frozen=True)
class Wrong(Documented):
    """What `--offline` and `--verify` found."""

    wrong: Mapping[str, str]
    """Each file that differs from dflash.lock, with the problem; empty if all match."""


@dataclass(frozen=True)
class Moved(Documented):
    """What `--check` found."""

    moved: Mapping[str, tuple[str, ...]]
    """Each repository with a newer commit, with the locked files that it changes; empty if there is none."""


def check_files(directory: Path, *, thorough: bool = False) -> Wrong | None:
    """Check that every file of dflash.lock is on this machine, without the network.

    `thorough` reads every file again. Returns the files that differ from the lock, each with the problem; `None` if
    both models come with dflash-deploy. Raises FilesMissing.
    """
    deployment, wanted = _wanted(directory)
    if not wanted:
        return None
    lock = _lock(deployment)
    wrong = wrong_files(wanted, lock) if thorough and lock is not None else {}
    if not wrong:
        require_all(wanted, lock)
    return Wrong(wrong)


def check_hub(directory: Path) -> Moved | None:
    """Repositories with a newer commit than dflash.lock has, each with the files that changed.

    `None` if both models come with dflash-deploy. Raises DownloadFailed.
    """
    _refuse_network(True, "--check")
    deployment, wanted = _wanted(directory)
    if not wanted:
        return None
    lock = _lock(deployment)
    if lock is None:
        raise FilesMissing("dflash.lock does not exist yet", hint="run `dflash-deploy pull` first")
    return Moved(newer_commits(wanted, lock, hub_of(deployment)))


def _wanted(directory: Path) -> tuple[Deployment, tuple[RequestedModel, ...]]:
    deployment = Deployment.existing(directory)
    return deployment, requested_models(deployment, plan_of(deployment))


def hub_of(deployment: Deployment) -> Source:
    """The Hub or mirror of a deployment, with its token. Raises SettingsRefused."""
    return Source.of(deployment.secrets[Settings.hf_token.name], deployment.values.get("HF_ENDPOINT"))


def _lock(deployment: Deployment) -> Lock | None:
    return read_lock(deployment.directory / LOCK_FILE)


def _size(lock: Lock) -> int:
    return sum(model.size for model in lock.models.values())


def _fetched(source: Source, requested: RequestedModel, lock: Lock, options: DownloadOptions) -> FetchedModel:
    model = lock.models[requested.role]
    done = fetch(source, model, requested.directory, options)
    place = requested.directory
    return FetchedModel(
        requested.role, model.repo, model.commit, place, model.size, done.there, done.reused, done.fetched
    )


def _refuse_mismatch(deployment: Deployment, ahead: HubMetadata) -> None:
    """Check the rules that read target and drafter, now that their config.json or GGUF header is known."""
    facts = read_facts()
    plan = make_plan(Choice(edited=deployment.values), deployment, facts, ahead)
    for finding in judge(plan, facts, CHECKPOINT_RULES):
        if finding.severity == "error":
            raise PreflightRefused(finding.message, hint=finding.fix)


@dataclass(frozen=True)
class Converted(Documented):
    """The GGUF that `models convert gguf` wrote."""

    file: Path
    """Path of the file."""
    bytes: Count
    """Size of the file in bytes."""
    architecture: str
    """`general.architecture` in its header, which decides which engine reads it."""
    form: str
    """Quantization, such as `Q8_0`."""
    title: Hidden[str]
    """The engine that reads it, in words."""


def convert_drafter(
    drafter: Path,
    target: Path,
    *,
    out: Path | None = None,
    form: str = "Q8_0",
    engine: str = Llamacpp.name,
    image: str | None = None,
    reporter: Reporter = SILENT,
) -> Converted:
    """Convert a drafter for llama.cpp with the tokenizer of its target, and quantize it.

    `drafter` and `target` are directories; the file goes beside the drafter unless `out` names another one. `image` has
    llama.cpp's tools; else the engine release names it. Raises NotPossible, ConversionFailed, EngineMissing.
    """
    from dflash_deploy.runtime.docker import ContainerJob, run_job  # noqa: PLC0415 - Docker's client: 0.2 s

    releases = load_catalog().engines.values()
    release = next((one for one in releases if engine in {one.engine, one.name} and one.converter), None)
    if release is None or release.converter is None:
        raise NotPossible(
            f"`{engine}` is not an engine that reads GGUFs", hint=f"use --engine {Llamacpp.name} or {LlamacppBuun.name}"
        )
    form = form.upper()
    aim = out if out is not None else drafter / f"{drafter.resolve().name}-{form}.gguf"
    dialect = release.converter.architecture
    conversion = Conversion(drafter, target, aim.absolute(), form, dialect)
    conversion.check()
    aim.parent.mkdir(parents=True, exist_ok=True)
    check_output(aim)
    with conversion.claimed(), conversion.sources() as source:
        mounts = {DRAFTER: (source, False), TARGET: (target, False), OUT: (conversion.out.parent, True)}
        for command in conversion.commands():
            reporter.note(f"{release.title}: {' '.join(command)}")
            done = run_job(ContainerJob(image or release.converter.image, command, mounts), reporter.note)
            if done.status:
                raise ConversionFailed(
                    f"{command[0]} ended with {done.status}: {done.last}",
                    hint="read the lines above; another release of the tools may do it: --image IMAGE",
                )
        conversion.finish()
    return Converted(conversion.out, conversion.out.stat().st_size, dialect, form, release.title)
